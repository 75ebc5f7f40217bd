"""What does `rowmill train` score on the Criteo sample with its default settings, and how far apart are seeds?

Each run trains once on the first 64,000 rows and tests on the last 16,000. The sample is in `$ROWMILL_DATA` or
`../shared/data`; without it nothing is measured. The result of each seed is a file in `--folder`, so the same command
continues after an interruption.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.outcomes import Outcomes
from rowmill.config import Config, DataConfig, TrainConfig

FIGURES = ("auc", "logloss")


def measure(benchmark: common.Benchmark, data: Path, folder: Path, *, seeds: int) -> None:
    """Add the test metrics, with one cell per seed."""
    outcomes = Outcomes(folder)
    first = benchmark.settings.seed
    for seed in range(first, first + seeds):
        config = Config(data=DataConfig(path=data), train=TrainConfig(seed=seed))
        result = outcomes.measure(f"seed-{seed}", config)
        figures = {figure: result["test"][figure] for figure in FIGURES}
        benchmark.cells.append({"seed": seed, **figures, "source": result["source"]})
    for figure in FIGURES:
        values = (float(str(cell[figure])) for cell in benchmark.cells)
        benchmark.summarize(figure, common.Mean.of(values))


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--seeds", type=int, help="number of runs, each with its own seed (default 20, quick 3)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / "out/criteo_quality",
        help="folder for the results of runs (default: out/criteo_quality)",
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    data = common.data_file("criteo/criteo80k.parquet")
    if data is None:
        print(
            "no criteo80k in $ROWMILL_DATA or ../shared/data: nothing was measured", file=sys.stderr
        )
        return
    seeds = arguments.seeds or (3 if arguments.quick else 20)
    measure(benchmark, data, arguments.folder, seeds=seeds)
    benchmark.write()


if __name__ == "__main__":
    main()
