"""Strategies by which categories of a collection share messages. All strategies give equal results.

A *lane* is a run of categories that share one message for ids and one for rows. Strategies differ in the boundaries of lanes
and in how an owner learns the category of an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

Strategy = Literal["packed", "fused", "source-hash", "per-category"]
"""`packed`: one lane for all categories. `fused`: one lane per group of categories (FusedRec). `source-hash`: as `fused`, but
the sender hashes ids and sends their categories in another message. `per-category`: one lane per category (TFRA)."""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class PooledCategory:
    """A category whose rows are pooled at their owners, which send vectors.

    Attributes:
        category: Its number.
        features: Number of features, which have one bag per sample each.
        rank: The rank that keeps all rows; None: the owner hash selects the rank of each row.
        padding: The padding id, or None.
    """

    category: int
    features: int
    rank: int | None
    padding: int | None

    def by(self, rank: int) -> bool:
        """Whether a rank keeps rows of this category."""
        return self.rank is None or self.rank == rank


@dataclass(frozen=True)
class Lane:
    """Categories that share messages: their positions in the collection, their numbers and their dims."""

    places: range
    categories: tuple[int, ...]
    dims: tuple[int, ...]
    hashed: bool
    """Whether ids are sent hashed, with their categories in a separate message."""
    pooled: tuple[PooledCategory, ...] = ()
    """The last of the categories: those whose rows are pooled at their owners."""
    replicated: int = 0
    """Number of categories whose rows every rank keeps; they precede the pooled ones."""

    @property
    def owned(self) -> int:
        """Number of categories whose distinct rows are requested from their owners; they precede the others."""
        return self.requested - self.replicated

    @property
    def requested(self) -> int:
        """Number of categories whose distinct rows are requested, from owners or from this rank itself."""
        return len(self.categories) - len(self.pooled)


def lanes(
    strategy: Strategy,
    groups: Sequence[int],
    categories: Sequence[int],
    dims: Sequence[int],
    pooled: Sequence[PooledCategory] = (),
    replicated: int = 0,
) -> list[Lane]:
    """The lanes of a strategy.

    Args:
        strategy: The strategy.
        groups: The group of every category; the categories of a group must be adjacent.
        categories: Their numbers.
        dims: Their dims.
        pooled: The last of the categories: those whose rows are pooled at their owners.
        replicated: Number of categories before them whose rows every rank keeps.
    """
    if strategy not in STRATEGIES:
        raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
    if strategy == "source-hash" and (pooled or replicated):
        raise InvalidInput(
            'strategy "source-hash" works with placement "rows" only: choose another strategy, such as "packed"'
        )
    first_pooled = len(categories) - len(pooled)
    first_replicated = first_pooled - replicated
    ends = [
        place
        for place in range(1, len(groups))
        if strategy == "per-category"
        or (strategy != "packed" and groups[place] != groups[place - 1])
    ]
    bounds = [0, *ends, len(groups)]
    return [
        Lane(
            range(begin, end),
            tuple(categories[begin:end]),
            tuple(dims[begin:end]),
            strategy == "source-hash",
            tuple(pooled[max(begin - first_pooled, 0) : max(end - first_pooled, 0)]),
            max(min(end, first_pooled) - max(begin, first_replicated), 0),
        )
        for begin, end in pairwise(bounds)
    ]
