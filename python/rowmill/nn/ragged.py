"""A batch of many features with any number of ids each.

Shapes: F features, B samples, N ids in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """Ids of F features and B samples, ordered by feature: one bag per feature and sample.

    Bag b of feature f is `values[offsets[f * B + b] : offsets[f * B + b + 1]]`.

    Attributes:
        features: Names of the features.
        values: int64 [N], all ids.
        offsets: int64 [F * B + 1], from 0 to N.
        weights: float32 [N], weights of the ids in a sum, or None.

    Examples:
        >>> batch = RaggedBatch.from_lists({"user": [[7], [8]], "clicks": [[1, 2, 3], []]})
        >>> batch.offsets.tolist(), batch.batch_size
        ([0, 1, 2, 5, 5], 2)
    """

    features: tuple[str, ...]
    values: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) != len(self.features):
            raise InvalidInput(f"features must be distinct names, got {list(self.features)}")
        _check("values", self.values, torch.int64)
        _check("offsets", self.offsets, torch.int64)
        if self.offsets.shape[0] == 0 or (self.offsets.shape[0] - 1) % len(self.features) != 0:
            raise InvalidInput(
                f"offsets must have F * B + 1 entries for F = {len(self.features)} features, "
                f"got {len(self.offsets)}"
            )
        if self.weights is not None:
            _check("weights", self.weights, torch.float32)
            if self.weights.shape[0] != self.values.shape[0]:
                raise InvalidInput(
                    f"weights must have one entry per id ({len(self.values)}), got {len(self.weights)}"
                )

    @property
    def batch_size(self) -> int:
        """Number of samples, B."""
        return (self.offsets.shape[0] - 1) // len(self.features)

    @classmethod
    def from_lengths(
        cls,
        features: Sequence[str],
        values: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
    ) -> RaggedBatch:
        """Make a batch from the number of ids per bag, int64 `[F, B]` or flat, instead of offsets."""
        offsets = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths.reshape(-1), 0, out=offsets[1:])
        return cls(tuple(features), values, offsets, weights)

    @classmethod
    def from_dense(cls, features: Sequence[str], ids_BF: Tensor) -> RaggedBatch:
        """Make a batch from exactly one id per feature and sample, int64 `[B, F]`."""
        if ids_BF.dim() != 2 or ids_BF.shape[1] != len(features):
            raise InvalidInput(f"ids must be [B, {len(features)}], got {list(ids_BF.shape)}")
        values = ids_BF.t().contiguous().view(-1)
        return cls(tuple(features), values, torch.arange(values.numel() + 1))

    @classmethod
    def from_single_ids(cls, ids: Mapping[str, Tensor]) -> RaggedBatch:
        """Make a batch of bags with one id each: sample n has id n of every feature, int64 `[n]`.

        B is the number of ids of the longest feature. Shorter features have empty bags at their end.

        Examples:
            >>> ids = {"user": torch.tensor([7, 8]), "shop": torch.tensor([3])}
            >>> RaggedBatch.from_single_ids(ids).offsets.tolist()
            [0, 1, 2, 3, 3]
        """
        lengths = torch.zeros(len(ids), max(map(len, ids.values())), dtype=torch.int64)
        for place, of in enumerate(ids.values()):
            lengths[place, : len(of)] = 1
        return cls.from_lengths(tuple(ids), torch.cat(list(ids.values())), lengths)

    @classmethod
    def from_lists(cls, bags: Mapping[str, Sequence[Sequence[int]]]) -> RaggedBatch:
        """Make a batch from lists of ids: for each feature one list per sample."""
        lengths = [len(bag) for feature in bags.values() for bag in feature]
        ids = [id_ for feature in bags.values() for bag in feature for id_ in bag]
        values = torch.tensor(ids, dtype=torch.int64)
        return cls.from_lengths(tuple(bags), values, torch.tensor(lengths, dtype=torch.int64))

    def bags(self, feature: str) -> tuple[Tensor, Tensor]:
        """Ids of one feature and its B + 1 offsets, starting at 0, for `EmbeddingBag`."""
        at, size = self.features.index(feature), self.batch_size
        ends = self.offsets[at * size : (at + 1) * size + 1]
        return self.values[ends[0] : ends[-1]], ends - ends[0]


def _check(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dim() != 1 or tensor.dtype != dtype:
        raise InvalidInput(f"{name} must be 1-D of {dtype}, got {tensor.dim()}-D of {tensor.dtype}")
