"""The cells of the benchmark: a shape on some ranks, a link and a distribution of ids; and the variants of each cell."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.dlrm_scaling.random_batch import Skew, table_names
from benchmarks.dlrm_scaling.shapes import SHAPES, Shape
from rowmill.distributed.placement import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rowmill.distributed import Strategy

UNLIMITED = "unlimited"
"""Loopback, without namespaces."""
REPLICATED_ROWS_MAX = 1000
"""Largest table that the variant `replicated` keeps on every rank."""
_LR = {"small": 3e-3, "mlperf": 3e-3, "dcnv2": 1e-5, "large": 1e-6}
"""Learning rates in place of the published ones. With those, training diverges or multiplies rounding errors of sums, because
rounds begin with the first dense weights, but trained rows."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to shard the tables.

    Attributes:
        name: Its part of the names of figures.
        placement: As for `ShardedCollection`.
        strategy: As for `ShardedCollection`.
    """

    name: str
    placement: str
    strategy: Strategy = "packed"


FIXED = ("rows", "pooled", "whole")
"""Variants with one placement for all tables."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A shape on some ranks.

    Attributes:
        config: A name in `SHAPES`.
        ranks: Number of ranks, N.
        link: `UNLIMITED`, or the rate of the link of each rank, in the form of `tc`.
        skew: Distribution of ids.
        samples: Samples per rank and step.
        scale: Fraction of the shape's rows.
        steps: Steps of a round, each with its own batch.
    """

    config: str
    ranks: int
    link: str
    skew: Skew
    samples: int
    scale: float
    steps: int

    @property
    def name(self) -> str:
        """The cell's part of the names of figures."""
        return f"{self.config}_r{self.ranks}_{self.link}_{self.skew}"

    @property
    def shape(self) -> Shape:
        """The shape with its rows scaled; of the dense layers of `large` only the last of each MLP."""
        shape = SHAPES[self.config].scaled(self.scale)
        shape = replace(shape, lr=_LR[self.config])
        # The gradients of all its layers have 1.2 GB, which take seconds at 1 Gbit/s and would hide the exchange.
        return replace(shape, dense=1, bottom=(), top=()) if self.config == "large" else shape

    def variants(self) -> list[Variant]:
        """The variants of this cell; the first is the baseline."""
        found = [
            *(Variant(name=kind, placement=kind) for kind in FIXED),
            Variant(name=AUTO, placement=AUTO),
            Variant(name="per-category", placement="rows", strategy="per-category"),
        ]
        small = [
            name
            for name, rows in zip(table_names(self.shape), self.shape.rows, strict=True)
            if rows <= REPLICATED_ROWS_MAX
        ]
        if small:
            placement = ",".join(["rows", *(f"{name}=replicated" for name in small)])
            found.append(Variant(name="replicated", placement=placement))
        return found

    def as_json(self) -> dict[str, Any]:
        """The cell as JSON fields, to send to another process."""
        return asdict(self)


def _cells() -> Iterator[Cell]:
    sizes: dict[str, dict[str, Any]] = {
        "small": {"samples": 1024, "scale": 0.1},
        "mlperf": {"samples": 2048, "scale": 0.01},
        "dcnv2": {"samples": 512, "scale": 0.01},
        "large": {"samples": 256, "scale": 0.002},
    }
    skews: tuple[Skew, ...] = ("zipf", "uniform")
    slow = "100mbit"
    for link, (config, size), ranks, skew in product(
        ("1gbit", UNLIMITED, slow), sizes.items(), (2, 4), skews
    ):
        if ranks == 4 and (config == "large" or link == slow):
            continue
        if link == slow and config not in ("small", "mlperf"):
            continue
        # Where a step takes a second or more, a round has fewer.
        steps = 2 if link == slow or ranks == 4 or config in ("dcnv2", "large") else 4
        yield Cell(config=config, ranks=ranks, link=link, skew=skew, steps=steps, **size)


CELLS = {cell.name: cell for cell in _cells()}
QUICK = ("small_r2_1gbit_zipf", "small_r2_unlimited_zipf", "mlperf_r2_1gbit_zipf")
