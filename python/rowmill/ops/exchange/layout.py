"""Data structures that the operators of an exchange take and return.

Shapes: N lookups, C categories, U distinct rows, R ranks, F features, B bags per feature, W rows of a message.
Positions and counts are int32; position -1 means padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Unique:
    """Distinct ids, ordered by category.

    Attributes:
        ids: int64 [U], within a category in order of first occurrence.
        counts: int32 [C], number of distinct ids per category.
        inverse: int32 [N], the position of every lookup's id in `ids`.
    """

    ids: Tensor
    counts: Tensor
    inverse: Tensor

    @cached_property
    def counts_listed(self) -> list[int]:
        """The counts as a list of ints."""
        listed: list[int] = self.counts.cpu().numpy().tolist()
        return listed

    def by_category(self) -> tuple[Tensor, ...]:
        """Split `ids` by category into views without copies."""
        return torch.split(self.ids, self.counts_listed)


@dataclass(frozen=True, eq=False)
class Sorted:
    """Distinct ids, ordered by owning rank, then by category.

    Attributes:
        ids: int64 [U].
        positions: int32 [U], the new position of each id of `Unique.ids`.
        counts: int32 [R * C], number of ids per rank and category.
    """

    ids: Tensor
    positions: Tensor
    counts: Tensor


class SortedFeature(NamedTuple):
    """A feature whose ids are sorted; kernels take this tuple.

    Attributes:
        category: Number of the category.
        rank: The rank that pools all its ids; None: the owner of each row.
        padding: The padding id, or None.
    """

    category: int
    rank: int | None
    padding: int | None


@dataclass(frozen=True, eq=False)
class SortedBags:
    """Ids of bags, ordered by the rank that pools them, then as before; not deduplicated.

    Attributes:
        ids: int64 [M], without padding.
        positions: int32 [N], the new position of each id, or -1.
        lengths: int32 [R, F, B], number of ids of each bag per rank.
    """

    ids: Tensor
    positions: Tensor
    lengths: Tensor


@dataclass(frozen=True, eq=False)
class Message:
    """Layout of a message: rows of all ranks and categories, flattened and concatenated.

    Attributes:
        counts: int32 [R * C], rows per rank and category.
        dims: Floats of a row, per category.
    """

    counts: Tensor
    dims: Sequence[int]

    @cached_property
    def floats_by_rank(self) -> list[int]:
        """Number of floats sent to or received from each rank."""
        if not self.dims:
            return []
        counts_RC = self.counts.view(-1, len(self.dims)).long().cpu()
        return [int(floats) for floats in counts_RC @ torch.tensor(self.dims)]


class RecoveredFeature(NamedTuple):
    """A feature to pool: its dim, its first column in the output, and whether bags are averaged. Kernels take this tuple."""

    dim: int
    column: int
    mean: bool


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of F features over the rows of a message.

    Attributes:
        message: The rows.
        combined: int32 [N], the row of every lookup in the message, or -1.
        offsets: int64 [F * B + 1], offsets of bags; bag b of feature f has index f * B + b.
        weights: float32 [N], weights of sums, or None.
        features: The F features.
        count: B.
        width: Columns of the output.
    """

    message: Message
    combined: Tensor
    offsets: Tensor
    weights: Tensor | None
    features: Sequence[RecoveredFeature]
    count: int
    width: int
