"""Rates of out-of-core training by staleness bound, memory and prefetch method; each cell runs alone."""

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.staleness_quality.quality import name_of
from benchmarks.training import Shape, config_of, loaded
from rowmill.config import StoreConfig, TrainConfig

MODES = ("none", "conventional", "lookahead")
"""Prefetch methods. none: rows are read in their step. conventional: the gets of coming steps run early, as far as the
bound allows. lookahead: conventional plus lookahead."""
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
LOOKAHEAD = 4
IN_FLIGHT = 96
"""Larger than the largest bound. The pooled vectors of a step take 3.4 MB."""


@dataclass(frozen=True)
class Point:
    """A point of the curves."""

    mode: str
    bound: int | None
    share: float

    @property
    def name(self) -> str:
        """The point's part of the names of metrics."""
        return f"{self.mode}_bound_{name_of(self.bound)}_memory_{self.share:.4g}"


def points(bounds: Iterable[int | None], shares: Iterable[float]) -> list[Point]:
    """The points by bound at a quarter of the memory, and by memory at bounds 0 and 10."""
    modes = ("conventional", "lookahead")
    over_bounds = [Point(mode, bound, 1 / 4) for bound in bounds for mode in modes]
    over_memory = [
        Point(mode, bound, share)
        for share in shares
        for mode, bound in [
            ("none", 0),
            *((mode, bound) for bound in (0, 10) for mode in modes),
        ]
    ]
    return list(dict.fromkeys(over_bounds + over_memory))


def measure(
    point: Point, shape: Shape, folder: Path, *, rounds: int, steps: int, warm_up: int
) -> list[dict[str, Any]]:
    """Run the rounds of one point in a new store; the log in the folder is shared by all points."""
    config = config_of(
        shape,
        folder,
        point.name,
        share=None if point.share == 1 else point.share,
        store=StoreConfig(
            lookahead=LOOKAHEAD if point.mode == "lookahead" else 0, staleness_bound=point.bound
        ),
        train=TrainConfig(in_flight=1 if point.mode == "none" else IN_FLIGHT),
    )
    with loaded(config, shape) as trainer:
        trainer.train(warm_up)
        cells = [
            {
                "bound": name_of(point.bound),
                "mode": point.mode,
                "share": point.share,
                **trainer.round(f"rate_{point.name}", number, steps=steps),
            }
            for number in range(rounds)
        ]
    shutil.rmtree(config.train.out)
    print(f"{point.name}: {cells[-1]['rows_per_s']:,.0f} rows/s", file=sys.stderr)
    return cells


def summarize(benchmark: common.Benchmark, cells: list[dict[str, Any]]) -> None:
    """Add the rate, hit rate and fraction of stall time of every point."""
    for variant in dict.fromkeys(cell["variant"] for cell in cells):
        mine = [cell for cell in cells if cell["variant"] == variant]
        for figure in ("rows_per_s", "hit_rate", "stall_share", "cold_rows_per_step"):
            values = common.Median.of(cell[figure] for cell in mine)
            benchmark.summarize(f"{variant}_{figure}", values)
    benchmark.cells.extend(cells)
