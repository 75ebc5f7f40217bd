"""benchmarks/risk_graphs in its smallest form: one process with rows out of core, compared with two processes."""

from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.risk_graphs.run import Run
from benchmarks.risk_graphs.shape import payout


def test_all_variants_train_the_same_number_of_nodes(tmp_path: Path) -> None:
    benchmark = common.Benchmark(common.Settings(True, 1, None, ""))
    shape = payout(6_000, 16, 1)
    Run(benchmark, rounds=1, steps=4, warm_up=4).measure("graph", shape, tmp_path, lookahead=2)
    cells = {str(cell["variant"]).removeprefix("graph_"): cell for cell in benchmark.cells}
    assert set(cells) == {"one_core", "two_cores", "blind", "replicas"}
    # Each of the two processes has its own batches.
    units = {name: cell["units"] for name, cell in cells.items()}
    assert units == {"one_core": 64, "two_cores": 64, "blind": 64, "replicas": 128}
    assert benchmark.summary["graph_one_core_cold_rows_per_step"] > 0
    over = benchmark.summary["graph_one_core_over_replicas"]
    rates = [float(str(cells[name]["rows_per_s"])) for name in ("one_core", "replicas")]
    assert over == pytest.approx(rates[0] / rates[1])
