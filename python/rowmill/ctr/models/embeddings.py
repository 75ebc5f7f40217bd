"""The ``embeddings`` argument of click models: one pooled vector per feature, stacked.

Shapes: B bags, F features, D weights per row.

A model calls ``embeddings(ids, offsets)`` and expects a tensor ``[B, F, D]``. ``FeatureBags`` builds such a module
from modules with the signature of ``torch.nn.EmbeddingBag``. A module that looks up all features in one call, such as
``rowmill.nn.StackedBags``, can be used instead.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Ids = Tensor | Sequence[Tensor]
"""Either int64 ``[B, F]`` (one id per feature) or F flat int64 tensors (many ids per bag, with offsets)."""


class FeatureBags(nn.Module):
    """Pools F features with modules that have the signature of ``torch.nn.EmbeddingBag``.

    Args:
        bags: One module per table.
        bag_of: Number of the module of each feature; None: one module per feature. A module is called once for all of
            its features.

    Example:
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> bags(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, bags: Iterable[nn.Module], *, bag_of: Sequence[int] | None = None) -> None:
        super().__init__()
        self.bags = nn.ModuleList(bags)
        self._bag_of = list(range(len(self.bags)) if bag_of is None else bag_of)
        if set(self._bag_of) != set(range(len(self.bags))):
            raise ValueError(
                f"bag_of must name each of the {len(self.bags)} bags, got {self._bag_of}"
            )
        self._features_of = [
            [f for f, used in enumerate(self._bag_of) if used == bag]
            for bag in range(len(self.bags))
        ]

    def forward(self, ids: Ids, offsets: Sequence[Tensor] | None = None) -> Tensor:
        """Pool the ids of every feature.

        Args:
            ids: ``[B, F]``, or one flat tensor per feature.
            offsets: with flat ids, one tensor per feature with the start of each of its B bags.

        Returns:
            ``[B, F, D]``.
        """
        features = len(self._bag_of)
        if isinstance(ids, Tensor):
            if offsets is not None:
                raise ValueError(
                    "offsets need flat ids: pass a list of one id tensor per feature, or drop the offsets"
                )
            if ids.dim() != 2 or ids.shape[1] != features:
                raise ValueError(f"ids must be [B, {features}], got {list(ids.shape)}")
            return self._one_id_each(ids)
        if offsets is None or len(ids) != features or len(offsets) != features:
            raise ValueError(f"flat ids need {features} id tensors and {features} offset tensors")
        flat = zip(self._bag_of, ids, offsets, strict=True)
        return torch.stack([self.bags[bag](i, o) for bag, i, o in flat], dim=1)

    def _one_id_each(self, ids_BF: Tensor) -> Tensor:
        pooled: list[Tensor] = [ids_BF] * len(self._bag_of)
        for bag, features in zip(self.bags, self._features_of, strict=True):
            out = bag(ids_BF[:, features].reshape(-1, 1)).unflatten(0, (-1, len(features)))
            for feature, vectors in zip(features, out.unbind(1), strict=True):
                pooled[feature] = vectors
        return torch.stack(pooled, dim=1)
