"""One pooled vector per feature, stacked: what every model here takes as its ``embeddings``.

Shapes: B bags, F features, D weights per row.

A model calls ``embeddings(ids, offsets)`` and expects a tensor ``[B, F, D]``. ``FeatureBags`` makes such a module
out of any modules with the signature of ``torch.nn.EmbeddingBag``; a module that fuses all features into one
lookup can take its place.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

Ids = Tensor | Sequence[Tensor]
"""Either int64 ``[B, F]`` (one id per feature) or F flat int64 tensors (many ids per bag, with offsets)."""


class FeatureBags(nn.Module):
    """F bags side by side, each with the signature of ``torch.nn.EmbeddingBag``.

    Example:
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> bags(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, bags: Iterable[nn.Module]) -> None:
        super().__init__()
        self.bags = nn.ModuleList(bags)

    def forward(self, ids: Ids, offsets: Sequence[Tensor] | None = None) -> Tensor:
        """Pool the ids of every feature.

        Args:
            ids: ``[B, F]``, or one flat tensor per feature.
            offsets: with flat ids, where each of the B bags of a feature starts.

        Returns:
            ``[B, F, D]``.
        """
        if isinstance(ids, Tensor):
            if offsets is not None:
                raise ValueError(
                    "offsets belong to flat ids: pass a list of F id tensors, or drop the offsets"
                )
            if ids.dim() != 2 or ids.shape[1] != len(self.bags):
                raise ValueError(f"ids must be [B, {len(self.bags)}], got {list(ids.shape)}")
            pooled = [bag(ids[:, f : f + 1]) for f, bag in enumerate(self.bags)]
        else:
            if offsets is None or len(ids) != len(self.bags) or len(offsets) != len(self.bags):
                raise ValueError(
                    f"flat ids need {len(self.bags)} id tensors and as many offset tensors"
                )
            pooled = [bag(i, o) for bag, i, o in zip(self.bags, ids, offsets, strict=True)]
        return torch.stack(pooled, dim=1)
