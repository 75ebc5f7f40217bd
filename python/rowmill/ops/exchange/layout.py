"""What the operators of an exchange hand to each other.

Shapes: N lookups, C categories, U distinct rows, R ranks, F features, B bags of each, W rows of a message.
Positions and counts are int32; position -1 stands for nothing (padding).
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
    """Distinct ids, category by category.

    Attributes:
        ids: int64 [U], those of one category in order of first occurrence.
        counts: int32 [C], how many of each category.
        inverse: int32 [N], the position of every lookup's id in `ids`.
    """

    ids: Tensor
    counts: Tensor
    inverse: Tensor

    @cached_property
    def counts_listed(self) -> list[int]:
        """The counts as numbers."""
        listed: list[int] = self.counts.cpu().numpy().tolist()
        return listed

    def by_category(self) -> tuple[Tensor, ...]:
        """The distinct ids of each category: views, no copies."""
        return torch.split(self.ids, self.counts_listed)


@dataclass(frozen=True, eq=False)
class Sorted:
    """Distinct ids by the rank that owns them, those of one rank category by category.

    Attributes:
        ids: int64 [U].
        positions: int32 [U], where each distinct id went.
        counts: int32 [R * C], how many a rank owns of a category.
    """

    ids: Tensor
    positions: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class Message:
    """Rows of all ranks and categories, flat, one after the other.

    Attributes:
        counts: int32 [R * C], rows for or from a rank of a category.
        dims: C widths of a row.
    """

    counts: Tensor
    dims: Sequence[int]

    @cached_property
    def floats_by_rank(self) -> list[int]:
        """How many floats go to or come from each rank."""
        if not self.dims:
            return []
        counts_RC = self.counts.view(-1, len(self.dims)).long().cpu()
        return [int(floats) for floats in counts_RC @ torch.tensor(self.dims)]


class RecoveredFeature(NamedTuple):
    """A feature whose bags are pooled: its width, its first column in the output, its pooling. As kernels take it."""

    dim: int
    column: int
    mean: bool


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of F features over the rows of a message.

    Attributes:
        message: The rows.
        combined: int32 [N], the row of every lookup, or -1.
        offsets: int64 [F * B + 1], where bags begin; bag b of feature f is number f * B + b.
        weights: float32 [N], factors of sums, or None.
        features: F of them.
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
