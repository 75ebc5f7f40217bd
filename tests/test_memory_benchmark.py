"""benchmarks/memory in a small form: a store with the smallest memory budget, filled to four times the budget."""

import json
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.memory import run as memory


@pytest.mark.usefixtures("forked")
def test_growth_is_compared_with_the_budget_and_the_bound(tmp_path: Path) -> None:
    out = tmp_path / "memory.json"
    benchmark = common.Benchmark(common.Settings(True, 1, out, "run.py --quick"))
    memory.measure(benchmark, ["32MiB"], [128], rounds=1)
    found = [cell for cell in benchmark.cells if "growth_bytes" in cell]
    assert [cell["variant"] for cell in found] == ["32MiB_dim128"]
    assert all(float(str(cell["growth_bytes"])) > 8 << 20 for cell in found), "memory must be used"
    assert all(float(str(cell["device_live_bytes"])) > 64 << 20 for cell in found), (
        "rows must be evicted"
    )
    summary = benchmark.summary
    grown = summary["32MiB_dim128_growth_over_budget"] * (32 << 20)
    bound = 1.05 * (32 << 20) + (4 << 20)
    assert summary["32MiB_dim128_growth_over_bound"] == pytest.approx(grown / bound)
    worst = benchmark.ranges["32MiB_dim128_growth_over_bound"]["max"]
    assert summary["worst_growth_over_bound"] == worst
    kept = json.loads(out.read_text())
    assert kept["summary"] == summary, "results must be written after each cell"
