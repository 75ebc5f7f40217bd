"""Does a DLRM learn the same in bfloat16 as in float32?

It trains on one click log with several seeds, in float32 and in split-bf16 (rows, layers and products). Both have the
same batches and initial weights. The log is the Criteo sample from `$ROWMILL_DATA` or `../shared/data`, with 64,000 rows
for training and 16,000 for testing; without it, a generated log. Runs are short, so seeds differ by more than precisions:
the result is the mean over seeds of the difference within a seed.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from rowmill.config import Config, DataConfig, RowsConfig, TrainConfig
from rowmill.ctr.settings import GenerateConfig
from rowmill.train import train

PRECISIONS = ("fp32", "split-bf16")


def log() -> Path | None:
    """The path of the Criteo sample, or None if it is missing."""
    file = common.data_file("criteo/criteo80k.parquet")
    if file is None:
        print("no criteo80k in $ROWMILL_DATA or ../shared/data: generating a log", file=sys.stderr)
    return file


def run(data: Path | None, precision: Any, *, seed: int, rows: int, folder: Path) -> dict[str, Any]:
    """Train once; returns the test metrics.

    Args:
        data: The log; None: a generated log of `rows` rows.
        precision: "fp32" or "split-bf16", for rows and dense layers.
        seed: Seed of initial weights.
        rows: Rows of a generated log.
        folder: Folder for the generated log and for files of runs.
    """
    report = train(
        Config(
            generate=None if data else GenerateConfig(rows=rows, rows_per_table=10_000),
            data=DataConfig(path=data or folder / "log"),
            rows=RowsConfig(dtype=precision),
            train=TrainConfig(
                seed=seed,
                threads=1,
                dense_optimizer="adagrad",
                dense_lr=0.02,
                precision=precision,
                checkpoint_every=0,
                out=folder / f"{precision}-{seed}",
            ),
        ),
        Console(quiet=True),
    )
    test = report["test"]
    print(f"{precision}, seed {seed}: AUC {test['auc']:.4f}", file=sys.stderr)
    return {
        "variant": precision,
        "round": seed,
        "auc": test["auc"],
        "logloss": test["logloss"],
        "seconds": report["run"]["seconds"],
    }


def summarize(benchmark: common.Benchmark) -> None:
    """Add means and spread over seeds, and by how much split-bf16 is below fp32 within a seed."""
    auc = {
        side: [float(str(cell["auc"])) for cell in benchmark.cells if cell["variant"] == side]
        for side in PRECISIONS
    }
    for side, values in auc.items():
        benchmark.summarize(f"{side}_auc", common.Mean.of(values))
    less = [whole - half for whole, half in zip(*auc.values(), strict=True)]
    benchmark.summarize("split-bf16_loses_auc", common.Mean.of(less))
    benchmark.summary["split-bf16_loses_auc_at_most"] = max(less)
    if len(less) > 1:
        error = statistics.stdev(less) / len(less) ** 0.5
        benchmark.summary["split-bf16_loses_auc_standard_error"] = error


def measure(
    benchmark: common.Benchmark, data: Path | None, folder: Path, *, seeds: int, rows: int
) -> None:
    """Run both precisions for every seed, one after the other."""
    first = benchmark.settings.seed
    for seed in range(first, first + seeds):
        for precision in PRECISIONS:
            cell = run(data, precision, seed=seed, rows=rows, folder=folder)
            benchmark.cells.append(cell)
    summarize(benchmark)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds (default 20, quick 4)")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    seeds = arguments.seeds or (4 if arguments.quick else 20)
    with tempfile.TemporaryDirectory() as folder:
        measure(benchmark, log(), Path(folder), seeds=seeds, rows=80_000)
    benchmark.write()


if __name__ == "__main__":
    main()
