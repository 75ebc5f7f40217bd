"""benchmarks/kept_runs in its smallest form: a run is continued and rolled back, ranks of a run are killed, and versions of a
store are measured."""

from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.kept_runs import run as kept

pytestmark = pytest.mark.slow


def test_all_parts_are_measured(tmp_path: Path) -> None:
    benchmark = common.Benchmark(common.Settings(True, 1, None, "run.py --tiny"))
    kept.measure(benchmark, kept.TINY, tmp_path)
    by_variant = {cell["variant"]: cell for cell in benchmark.cells}
    assert by_variant.keys() == {"continue", "rollback", "restart", "versions"}
    assert by_variant["rollback"]["versions"] == kept.KEPT
    assert by_variant["restart"]["round"] == kept.TINY.restarts - 1
    summary = benchmark.summary
    assert summary["ranked_bytes"] > kept.TINY.rows * kept.ROW_BYTES
    assert summary["run_bytes"] > kept.TINY.rows * kept.ROW_BYTES
    # The rows stay where they are until a batch needs them.
    assert summary["continue_read_bytes"] > 0
    assert summary["continue_begins_s"] > summary["rollback_s"] > 0
    for share in kept.SHARES:
        assert 1 < summary[f"versions_{share:g}_over_needed_worst"] < 10
    assert not list(tmp_path.glob("*/")), "runs and stores are removed"
