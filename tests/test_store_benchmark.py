"""The results of benchmarks/store are computed from lines that its program prints. An inverted ratio, or a
limit taken from the wrong engine, would be published. The lines here are made up;
crates/rowmill-bench/tests checks that the program prints such lines.
"""

import argparse
from typing import Any

import pytest

from benchmarks import common
from benchmarks.store import cells, run, summary


def cell(work: str) -> cells.Cell:
    return cells.Cell("x", work, rows=1000, row_bytes=100, memory=1)


def engine(name: str, rows: int, *, threads: int = 2, read_bytes: int = 0) -> dict[str, Any]:
    return {
        "engine": name,
        "threads": threads,
        "rows": rows,
        "wall_s": 2.0,
        "cpu_s": 1.0,
        "device_read_bytes": read_bytes,
    }


def summarize(work: str, lines: list[dict[str, Any]]) -> dict[str, float]:
    benchmark = common.Benchmark(common.Settings(True, 1, None, ""))
    summary.summarize(benchmark, cell(work), lines)
    assert benchmark.cells == lines
    return {name: value for name, value in benchmark.summary.items() if "_spread" not in name}


def test_cold_cells_compare_reads_with_the_probe_and_rows_with_peers() -> None:
    figures = summarize(
        "cold-get",
        [
            engine("probe", 100, threads=1, read_bytes=100 * 4096),
            engine("rowmill", 800, read_bytes=80 * 4096),
            {"hit_rate": 0.9, "best_static": 0.96, "growth_over_memory": 1.0},
            engine("rocksdb", 100),
            engine("rocksdb", 400, threads=16),
        ],
    )
    assert figures["x_over_probe"] == 0.8
    assert figures["x_rows_per_s"] == 400
    assert figures["x_over_rocksdb_2_threads"] == 8
    assert figures["x_over_rocksdb_16_threads"] == 2
    assert figures["x_hit_rate_over_best"] == pytest.approx(0.9375)


def test_the_cost_of_clocks_is_the_added_time() -> None:
    figures = summarize("clocks", [engine("clocks_off", 1200), engine("clocks_on", 1000)])
    assert figures["x_overhead"] == pytest.approx(0.2)
    assert figures["x_on_ns_per_op"] == 1e9 * 2.0 / 1000 / 2


def test_space_counts_from_the_first_rewrite() -> None:
    look = {"index_bytes": 5_000, "pinned_bytes": 10_000, "write_amplification": 2.0}

    def wait(beside: str, p99_ms: float) -> dict[str, Any]:
        rates = {"gets_per_s": 1, "device_reads_per_s": 2}
        return {"beside": beside, **rates, "p50_ms": 3, "p99_ms": p99_ms, "p999_ms": 50}

    figures = summarize(
        "space",
        [
            {"rewritten": 0.5, "log_bytes": 900_000, **look},
            {"rewritten": 1.0, "log_bytes": 145_000, **look},
            {"rewritten": 1.1, "log_bytes": 155_000, **look},
            *(wait(beside, p99_ms) for p99_ms in (4, 8) for beside in ("probe", "nothing")),
            *(wait("updates", p99_ms) for p99_ms in (4, 16)),
        ],
    )
    assert figures["x_over_live"] == pytest.approx(1.55)
    assert figures["x_over_live_max"] == pytest.approx(1.6)
    assert figures["x_pinned_over_live_max"] == pytest.approx(0.1)
    assert figures["x_get_beside_updates_p99_ms"] == 10
    assert figures["x_get_beside_updates_p99_over_probe"] == pytest.approx(1.5)
    assert figures["x_get_beside_nothing_p99_over_probe"] == 1


def test_the_stall_of_a_checkpoint_is_the_extra_time_of_its_slowest_step() -> None:
    line = {
        "cut_ms": 1,
        "duration_ms": 300,
        "step_before_p50_ms": 10,
        "step_during_p50_ms": 12,
        "changed_bytes": 100,
        "log_bytes": 150,
        "saved_bytes": 80,
        "file_bytes": 10,
    }
    figures = summarize(
        "checkpoint", [{**line, "step_during_max_ms": 25}, {**line, "step_during_max_ms": 61}]
    )
    assert figures["x_stall_ms"] == 33
    assert figures["x_stall_ms_max"] == 51
    assert figures["x_bytes_over_changed"] == pytest.approx(1.6)
    assert figures["x_own_bytes_over_changed"] == pytest.approx(0.9)


def test_training_is_limited_by_memory_or_by_the_device() -> None:
    def lines(probe_reads: int) -> list[dict[str, Any]]:
        return [
            engine("probe", 100, threads=1, read_bytes=probe_reads * 4096),
            engine("rowmill", 900),
            {"rows_read": 90, "steps": 3},
            engine("rowmill_no_lookahead", 500),
            engine("rowmill_in_memory", 1000),
            engine("lmdb", 100),
        ]

    by_memory = summarize("training", lines(probe_reads=1000))
    assert by_memory["x_over_limit"] == pytest.approx(0.9)
    assert by_memory["x_rows_read_per_step"] == 30
    assert by_memory["x_over_lmdb_2_threads"] == 9
    # 45 reads per second with 1 read per 10 rows give 450 rows per second.
    by_device = summarize("training", lines(probe_reads=90))
    assert by_device["x_over_limit"] == pytest.approx(1.0)


def test_cells_have_distinct_names_and_a_summary() -> None:
    for quick in (True, False):
        names = [each.name for each in cells.cells(quick)]
        assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="no summary of dance"):
        summarize("dance", [])


def test_unknown_peers_are_named() -> None:
    assert run.peers_of("lmdb,faster") == ["lmdb", "faster"]
    with pytest.raises(
        argparse.ArgumentTypeError,
        match="unknown peer 'berkeley': give one or more of rocksdb, lmdb",
    ):
        run.peers_of("berkeley")
