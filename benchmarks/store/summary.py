"""Summarize the lines of a cell: metrics with their spread over rounds, and ratios computed per round."""

from typing import Any

from benchmarks import common
from benchmarks.store.cells import PEERS, Cell

Lines = list[dict[str, Any]]


def median(lines: Lines, figure: str) -> common.Median:
    """The median of a metric over lines."""
    return common.Median.of(line[figure] for line in lines)


def add_rates(lines: Lines) -> None:
    """Add rates to every line of an engine."""
    for line in lines:
        if "engine" in line:
            line["rows_per_s"] = line["rows"] / line["wall_s"]
            line["cpu_us_per_row"] = 1e6 * line["cpu_s"] / line["rows"]
            line["reads_per_s"] = line["device_read_bytes"] / 4096 / line["wall_s"]


def of_engine(lines: Lines, engine: str) -> Lines:
    """The rounds of an engine."""
    return [line for line in lines if line.get("engine") == engine]


def engines(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the store's rate, and its ratios to the probe and the peers."""
    ours, probe = of_engine(lines, "rowmill"), of_engine(lines, "probe")
    rate = "rows_per_s" if cell.work.startswith("memory") else "reads_per_s"
    benchmark.summarize(f"{cell.name}_rows_per_s", median(ours, "rows_per_s"))
    benchmark.summarize(f"{cell.name}_cpu_us_per_row", median(ours, "cpu_us_per_row"))
    benchmark.summarize(
        f"{cell.name}_over_probe",
        common.Median.of(own[rate] / limit[rate] for own, limit in zip(ours, probe, strict=True)),
    )
    peers = sorted(
        {(line["engine"], line["threads"]) for line in lines if line.get("engine") in PEERS}
    )
    for engine, threads in peers:
        theirs = [line for line in of_engine(lines, engine) if line["threads"] == threads]
        name = f"{cell.name}_{engine}_{threads}_threads"
        benchmark.summarize(f"{name}_rows_per_s", median(theirs, "rows_per_s"))
        benchmark.summarize(f"{name}_cpu_us_per_row", median(theirs, "cpu_us_per_row"))
        benchmark.summarize(
            f"{cell.name}_over_{engine}_{threads}_threads",
            common.Median.of(
                own["rows_per_s"] / their["rows_per_s"]
                for own, their in zip(ours, theirs, strict=True)
            ),
        )


def caches(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add hit rates and memory of a store with cold rows."""
    rounds = [line for line in lines if "hit_rate" in line]
    for line in rounds:
        line["hit_rate_over_best"] = line["hit_rate"] / line["best_static"]
    benchmark.summarize(
        f"{cell.name}_probe_cpu_us", median(of_engine(lines, "probe"), "cpu_us_per_row")
    )
    for figure in ("hit_rate", "hit_rate_over_best", "growth_over_memory"):
        benchmark.summarize(f"{cell.name}_{figure}", median(rounds, figure))


def clocks(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the time per operation (read or write of a row) with and without staleness clocks, and the difference."""
    on, off = of_engine(lines, "clocks_on"), of_engine(lines, "clocks_off")
    for line in lines:
        line["ns_per_op"] = 1e9 / line["rows_per_s"] / 2
    benchmark.summarize(f"{cell.name}_on_ns_per_op", median(on, "ns_per_op"))
    benchmark.summarize(f"{cell.name}_off_ns_per_op", median(off, "ns_per_op"))
    benchmark.summarize(
        f"{cell.name}_overhead",
        common.Median.of(
            mine["ns_per_op"] / other["ns_per_op"] - 1 for mine, other in zip(on, off, strict=True)
        ),
    )


def space(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add device bytes relative to live bytes after every row was rewritten, and how long gets waited."""
    live = cell.rows * cell.row_bytes
    steady = [line for line in lines if line.get("rewritten", 0) >= 1]
    for line in steady:
        line["over_live"] = (line["log_bytes"] + line["index_bytes"]) / live
    benchmark.summarize(f"{cell.name}_over_live", median(steady, "over_live"))
    benchmark.summary[f"{cell.name}_over_live_max"] = max(line["over_live"] for line in steady)
    benchmark.summary[f"{cell.name}_unpinned_over_live_max"] = max(
        line["over_live"] - line["pinned_bytes"] / live for line in steady
    )
    benchmark.summary[f"{cell.name}_pinned_over_live_max"] = (
        max(line["pinned_bytes"] for line in steady) / live
    )
    benchmark.summary[f"{cell.name}_write_amplification"] = steady[-1]["write_amplification"]
    waits = {
        beside: [line for line in lines if line.get("beside") == beside]
        for beside in ("probe", "nothing", "updates")
    }
    for beside, rounds in waits.items():
        name = f"{cell.name}_get_beside_{beside}"
        for figure in ("gets_per_s", "device_reads_per_s", "p50_ms", "p99_ms", "p999_ms"):
            benchmark.summarize(f"{name}_{figure}", median(rounds, figure))
        benchmark.summarize(
            f"{name}_p99_over_probe",
            common.Median.of(
                own["p99_ms"] / limit["p99_ms"]
                for own, limit in zip(rounds, waits["probe"], strict=True)
            ),
        )


def checkpoint(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the slowest step during a checkpoint relative to a usual step, and the bytes written."""
    for line in lines:
        line["stall_ms"] = line["step_during_max_ms"] - line["step_before_p50_ms"]
        line["bytes_over_changed"] = (line["log_bytes"] + line["file_bytes"]) / line[
            "changed_bytes"
        ]
        line["own_bytes_over_changed"] = (line["saved_bytes"] + line["file_bytes"]) / line[
            "changed_bytes"
        ]
    for figure in (
        *("cut_ms", "stall_ms", "duration_ms", "step_before_p50_ms", "step_during_p50_ms"),
        *("step_during_max_ms", "bytes_over_changed", "own_bytes_over_changed"),
    ):
        benchmark.summarize(f"{cell.name}_{figure}", median(lines, figure))
    benchmark.summary[f"{cell.name}_stall_ms_max"] = max(line["stall_ms"] for line in lines)


def opening(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the time from opening to the first row, with the index in the page cache and without."""
    for cached, name in ((False, "first_row_s"), (True, "first_row_cached_s")):
        rounds = [line for line in lines if line["cached"] == cached]
        benchmark.summarize(f"{cell.name}_{name}", median(rounds, "first_row_s"))
    benchmark.summarize(f"{cell.name}_cpu_s", median(lines, "cpu_s"))


def training(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the rate of looked-up rows relative to the limit: all rows in memory, or the device."""
    engines(benchmark, cell, lines)
    over_probe = f"{cell.name}_over_probe"
    del benchmark.summary[over_probe], benchmark.summary[f"{over_probe}_spread"]
    del benchmark.ranges[over_probe]
    ours = of_engine(lines, "rowmill")
    for engine in ("rowmill_no_lookahead", "rowmill_in_memory"):
        rounds = of_engine(lines, engine)
        benchmark.summarize(f"{cell.name}_{engine}_rows_per_s", median(rounds, "rows_per_s"))
    reads = [line for line in lines if "rows_read" in line]
    for own, read, probe, memory in zip(
        ours,
        reads,
        of_engine(lines, "probe"),
        of_engine(lines, "rowmill_in_memory"),
        strict=True,
    ):
        device = probe["reads_per_s"] * own["rows"] / max(read["rows_read"], 1)
        own["over_limit"] = own["rows_per_s"] / min(device, memory["rows_per_s"])
        own["rows_read_per_step"] = read["rows_read"] / read["steps"]
    benchmark.summarize(f"{cell.name}_over_limit", median(ours, "over_limit"))
    benchmark.summarize(f"{cell.name}_rows_read_per_step", median(ours, "rows_read_per_step"))


def summarize(benchmark: common.Benchmark, cell: Cell, lines: Lines) -> None:
    """Add the metrics of a cell to the summary, and its lines to the cells."""
    add_rates(lines)
    match cell.work:
        case "memory-get" | "memory-rmw":
            engines(benchmark, cell, lines)
        case "cold-get" | "cold-rmw":
            engines(benchmark, cell, lines)
            caches(benchmark, cell, lines)
        case "clocks":
            clocks(benchmark, cell, lines)
        case "space":
            space(benchmark, cell, lines)
        case "checkpoint":
            checkpoint(benchmark, cell, lines)
        case "open":
            opening(benchmark, cell, lines)
        case "training":
            training(benchmark, cell, lines)
        case other:
            raise ValueError(f"cell {cell.name}: no summary of {other}")
    benchmark.cells.extend(lines)
