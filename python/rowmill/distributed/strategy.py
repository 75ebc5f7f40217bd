"""How the categories of a collection share messages. Every strategy gives the same result.

A *lane* is a run of categories whose ids travel in one message, and whose rows do. Strategies differ in where lanes end,
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
"""`packed`: one lane for everything. `fused`: a lane for each group of categories (FusedRec). `source-hash`: the same, with
ids hashed by their rank and a message more that tells categories. `per-category`: a lane for each category (TFRA)."""

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True)
class Lane:
    """Categories that share messages: their places among those of the collection, and their numbers and widths."""

    places: range
    categories: tuple[int, ...]
    dims: tuple[int, ...]
    hashed: bool
    """Whether ids travel hashed, with their categories in a message of their own."""


def lanes(
    strategy: Strategy, groups: Sequence[int], categories: Sequence[int], dims: Sequence[int]
) -> list[Lane]:
    """The lanes of a strategy; the categories of a group stand side by side."""
    if strategy not in STRATEGIES:
        raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, got {strategy!r}")
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
        )
        for begin, end in pairwise(bounds)
    ]
