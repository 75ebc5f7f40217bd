"""What does a staleness bound gain in speed, and what does it cost in quality?

Trains the same DLRM with staleness bounds from 0 to 80 and without a bound. More steps are in flight than the bound
allows, so the bound limits staleness. `quality`: AUC on held-out rows over several seeds, on the generated log and the
Criteo sample. `rate`: rows per second, hit rate and stalls by bound, by memory and by prefetch method: none, early gets
of coming steps (conventional prefetch, limited by the bound), or lookahead (not limited by it).
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.staleness_quality import quality, rate
from benchmarks.training import Shape


@dataclass(frozen=True)
class Size:
    """Sizes of the measurement."""

    seeds: int = 5
    bounds: tuple[int | None, ...] = quality.BOUNDS
    shares: tuple[float, ...] = rate.SHARES
    log_rows: int = 400_000
    rows_per_table: int = 1_000_000
    batch: int = 2048
    rounds: int = 5
    steps: int = 24
    warm_up: int = 60

    @property
    def shape(self) -> Shape:
        """The work of the rate measurement, with extra steps for those in flight and in lookahead at the end."""
        ahead = rate.IN_FLIGHT + 2 * rate.LOOKAHEAD
        return Shape(
            rows_per_table=self.rows_per_table,
            steps=self.warm_up + self.rounds * self.steps + ahead,
            batch=self.batch,
        )


QUICK = Size(seeds=2, log_rows=100_000, rows_per_table=100_000, rounds=3, steps=8, warm_up=24)


def measure_quality(benchmark: common.Benchmark, size: Size, folder: Path) -> None:
    """Measure AUC by bound on every available log."""
    for log in quality.logs(folder, rows=size.log_rows):
        seeds = range(benchmark.settings.seed, benchmark.settings.seed + size.seeds)
        quality.summarize(benchmark, quality.runs(log, folder, bounds=size.bounds, seeds=seeds))


def measure_rate(benchmark: common.Benchmark, size: Size, folder: Path) -> None:
    """Measure the rates of all points."""
    shape = replace(size.shape, seed=benchmark.settings.seed)
    for point in rate.points(size.bounds, size.shares):
        cells = rate.measure(
            point, shape, folder, rounds=size.rounds, steps=size.steps, warm_up=size.warm_up
        )
        rate.summarize(benchmark, cells)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("--seeds", type=int, help="number of seeds per run (default 5, quick 2)")
    parser.add_argument(
        "--part", choices=["quality", "rate"], help="run only this part (default: both)"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    size = QUICK if benchmark.settings.quick else Size()
    size = replace(size, seeds=arguments.seeds or size.seeds)
    # In the repository, because /tmp may be in memory.
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as name:
        if arguments.part != "rate":
            measure_quality(benchmark, size, Path(name) / "quality")
        if arguments.part != "quality":
            measure_rate(benchmark, size, Path(name) / "rate")
    benchmark.write()


if __name__ == "__main__":
    main()
