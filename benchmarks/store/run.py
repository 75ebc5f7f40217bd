"""How near does the store come to the limits of memory and of the disk?

Each cell is one kind of work, run by a process of its own in interleaved rounds: the probe that shows the
limit (random bucket, then random row; or random blocks of the same file system), then the store. The
engines are written in Rust (crates/rowmill-bench), so that no interpreter stands between them and a row.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common

MIB = 1 << 20


@dataclass(frozen=True)
class Cell:
    """One kind of work, and the arguments of the program that does it."""

    name: str
    work: str
    rows: int
    row_bytes: int
    memory: int
    arguments: tuple[str, ...] = ()


def cells(quick: bool) -> list[Cell]:
    """The quick form has a quarter of the rows and of the memory."""
    part = 4 if quick else 1
    short, wide = 32 * MIB // part, 8 * MIB // part
    # Rows, index and bookkeeping of everything; and a quarter of the rows' bytes.
    all_short, all_wide, quarter = 160 * short, 640 * wide, 128 * wide
    adagrad = ("--optimizer", "rowwise-adagrad")
    zipf, two = ("--zipf", "0.99"), ("--threads", "2")
    return [
        Cell("get_64B", "memory-get", short, 64, all_short),
        Cell("get_64B_2_threads", "memory-get", short, 64, all_short, two),
        Cell("get_512B", "memory-get", wide, 512, all_wide),
        Cell("get_512B_2_threads", "memory-get", wide, 512, all_wide, two),
        Cell("sgd_64B", "memory-rmw", short, 64, all_short),
        Cell("rowwise_adagrad_64B", "memory-rmw", short, 64, all_short, adagrad),
        Cell("cold_get_uniform", "cold-get", wide, 512, quarter, two),
        Cell("cold_get_zipf", "cold-get", wide, 512, quarter, (*two, *zipf)),
        Cell("cold_rmw_uniform", "cold-rmw", wide, 512, quarter, two),
        Cell("cold_rmw_zipf", "cold-rmw", wide, 512, quarter, (*two, *zipf)),
    ]


def build() -> Path:
    """Builds the program that runs the cells; its path."""
    command = ["cargo", "build", "--release", "--locked", "-p", "rowmill-bench"]
    messages = subprocess.run(
        [*command, "--message-format", "json"],
        cwd=common.REPOSITORY,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    for message in map(json.loads, messages.splitlines()):
        if message.get("executable") and message["target"]["name"] == "rowmill-bench":
            return Path(message["executable"])
    raise RuntimeError("cargo named no program")


def run(program: Path, cell: Cell, *, quick: bool, seed: int) -> list[dict[str, Any]]:
    """Runs a cell; one dictionary per line it prints."""
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as folder:
        numbers = {
            "rows": cell.rows,
            "row-bytes": cell.row_bytes,
            "memory": cell.memory,
            "seconds": 1 if quick else 4,
            "rounds": 5,
            "folder": folder,
            "seed": seed,
        }
        options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(
            [str(program), cell.work, *options, *cell.arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return [{"cell": cell.name, **json.loads(line)} for line in done.stdout.splitlines()]


def median(lines: list[dict[str, Any]], figure: str) -> common.Median:
    return common.Median.of(line[figure] for line in lines)


def summarize(benchmark: common.Benchmark, cell: Cell, lines: list[dict[str, Any]]) -> None:
    """Rates, and the store's over the probe's, round by round."""
    for line in lines:
        if "engine" in line:
            line["rows_per_s"] = line["rows"] / line["wall_s"]
            line["cpu_us_per_row"] = 1e6 * line["cpu_s"] / line["rows"]
            line["reads_per_s"] = line["device_read_bytes"] / 4096 / line["wall_s"]
    benchmark.cells.extend(lines)
    ours = [line for line in lines if line.get("engine") == "rowmill"]
    probe = [line for line in lines if line.get("engine") == "probe"]
    rate = "reads_per_s" if cell.work.startswith("cold") else "rows_per_s"
    benchmark.summarize(f"{cell.name}_rows_per_s", median(ours, "rows_per_s"))
    benchmark.summarize(f"{cell.name}_cpu_us_per_row", median(ours, "cpu_us_per_row"))
    benchmark.summarize(
        f"{cell.name}_over_probe",
        common.Median.of(own[rate] / limit[rate] for own, limit in zip(ours, probe, strict=True)),
    )
    caches = [line for line in lines if "hit_rate" in line]
    if caches:
        benchmark.summarize(f"{cell.name}_probe_cpu_us", median(probe, "cpu_us_per_row"))
        benchmark.summarize(f"{cell.name}_hit_rate", median(caches, "hit_rate"))
        benchmark.summarize(
            f"{cell.name}_hit_rate_over_best",
            common.Median.of(line["hit_rate"] / line["best_static"] for line in caches),
        )
        benchmark.summarize(f"{cell.name}_growth_over_memory", median(caches, "growth_over_memory"))


def main() -> None:
    benchmark = common.Benchmark(common.parse_arguments(__doc__))
    settings = benchmark.settings
    program = build()
    for cell in cells(settings.quick):
        lines = run(program, cell, quick=settings.quick, seed=settings.seed)
        summarize(benchmark, cell, lines)
        name = f"{cell.name}_over_probe"
        rate = benchmark.summary[f"{cell.name}_rows_per_s"]
        print(
            f"{cell.name}: {rate:,.0f} rows/s, {benchmark.summary[name]:.2f} of the probe",
            file=sys.stderr,
        )
    benchmark.write()


if __name__ == "__main__":
    main()
