"""The cells of the benchmark, a grid of shapes, and batches of ids for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill import RaggedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

IDS = 100_000
"""Number of distinct ids per category."""
_SPREAD = 0x9E37_79B9_7F4B
"""An odd factor; multiplying by it spreads ids over 48 bits without collisions."""


@dataclass(frozen=True)
class Cell:
    """One shape of an exchange; every bag has the same number of ids."""

    ranks: int
    categories: int
    dims: tuple[int, ...]
    """The K dims of rows, assigned to categories in rotation."""
    batch: int
    """Samples per rank."""
    zipf: float
    bag: int = 1
    """Ids per bag."""

    @property
    def name(self) -> str:
        """The cell's part of the names of metrics."""
        dims = "-".join(map(str, self.dims))
        bag = "" if self.bag == 1 else f"_l{self.bag}"
        return f"r{self.ranks}_m{self.categories}_d{dims}_b{self.batch}_z{self.zipf}{bag}"

    @property
    def width(self) -> int:
        """Weights of the vectors of one sample."""
        return sum(self.dims[n % len(self.dims)] for n in range(self.categories))

    @property
    def steps(self) -> int:
        """Steps per round, each with its own batch. If batches are prepared ahead, no step hides the preparation of the first."""
        return 4 if self.batch > 1024 else 12

    def as_json(self) -> dict[str, Any]:
        """The cell as JSON fields, to send to another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Cell:
        """The cell from JSON fields of another process."""
        made = cls(**fields)
        return replace(made, dims=tuple(made.dims))

    def batches(self, count: int, seed: int) -> list[RaggedBatch]:
        """Batches of one rank; the seed must differ between ranks."""
        random = np.random.default_rng(seed)
        names = [f"c{category}" for category in range(self.categories)]
        shares = zipf_shares(IDS, self.zipf)
        bags = self.batch * self.categories
        offsets = torch.arange(bags + 1) * self.bag
        ids = [draw(random, shares, bags * self.bag) for _ in range(count)]
        return [RaggedBatch(tuple(names), torch.from_numpy(of), offsets) for of in ids]


def zipf_shares(ids: int, zipf: float) -> NDArray[np.float64]:
    """The cumulative share of ids under Zipf's law, most frequent first."""
    weights = np.arange(1, ids + 1, dtype=np.float64) ** -zipf
    return np.cumsum(weights) / weights.sum()


def draw(random: np.random.Generator, shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Draw 48-bit ids with these cumulative shares."""
    drawn: NDArray[np.int64] = np.searchsorted(shares, random.random(count)).astype(np.int64)
    return drawn * _SPREAD & (1 << 48) - 1


ONE, THREE, FIVE = (16,), (4, 16, 64), (4, 8, 16, 32, 64)
"""Dims of one, three and five specs."""
BATCHES = 512, 4096
"""Samples per rank in the full grid."""
CENTRE = Cell(2, 57, THREE, 512, 1.05)
"""The central cell; the other cells of the quick form differ from it in one parameter."""


def dims_alone() -> list[Cell]:
    """Cells with two ranks and the same dim in all categories, to measure the bandwidth per dim."""
    return [replace(CENTRE, dims=(dim,)) for dim in FIVE]


def quick(ranks: int) -> list[Cell]:
    """Cells of the quick form."""
    centre = replace(CENTRE, ranks=ranks)
    return [
        centre,
        replace(centre, dims=ONE),
        replace(centre, categories=26),
        replace(centre, categories=200),
        replace(centre, batch=4096),
    ]


def full(ranks: int, batches: Sequence[int] = BATCHES) -> Iterator[Cell]:
    """All cells, or only those with these batch sizes."""
    for categories in (26, 57, 200):
        for dims in (ONE, THREE, FIVE):
            for batch in batches:
                for zipf in (0.8, 1.05, 1.2):
                    yield Cell(ranks, categories, dims, batch, zipf)
