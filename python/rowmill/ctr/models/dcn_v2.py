"""DCN-v2: cross layers in parallel with a deep tower (Wang et al. 2021, arXiv 2008.13535).

Shapes: B rows per batch, N numeric features, F id features, D weights per row, X = N + F * D.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp


class CrossLayer(nn.Module):
    """``x0 * (W x + b) + x``; with a rank, ``W = U V`` (equations 1 and 2 of the paper).

    Example:
        >>> x = torch.rand(5, 8)
        >>> CrossLayer(8, rank=2)(x, x).shape
        torch.Size([5, 8])
    """

    def __init__(self, width: int, *, rank: int | None = None) -> None:
        super().__init__()
        self.inward = None if rank is None else nn.Linear(width, rank, bias=False)
        self.outward = nn.Linear(width if rank is None else rank, width)
        for linear in (self.inward, self.outward):
            if linear is not None:
                nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(self.outward.bias)

    def forward(self, x0_BX: Tensor, x_BX: Tensor) -> Tensor:
        """Cross ``x`` with the input of the first layer."""
        inward = x_BX if self.inward is None else self.inward(x_BX)
        return x0_BX * self.outward(inward) + x_BX


class DCNv2(nn.Module):
    """Cross layers and a deep tower in parallel, joined by one linear layer (the paper's parallel structure).

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, F, D]``.
        features: F.
        dim: D.
        dense_features: N.
        cross_layers: number of cross layers.
        rank: rank of the cross matrices; None: full rank.
        deep: widths of the deep tower.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = DCNv2(
        ...     bags, features=3, dim=4, dense_features=2, cross_layers=2, rank=3, deep=[8]
        ... )
        >>> model(torch.rand(5, 2), torch.zeros(5, 3, dtype=torch.int64)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        features: int,
        dim: int,
        dense_features: int = 13,
        cross_layers: int = 2,
        rank: int | None = 64,
        deep: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__()
        width = dense_features + features * dim
        self.embeddings = embeddings
        self.crosses = nn.ModuleList(CrossLayer(width, rank=rank) for _ in range(cross_layers))
        self.deep = mlp(width, deep)
        self.join = mlp(width + (deep[-1] if deep else width), [1], relu_last=False)

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, F, D]``, without the lookup."""
        x0_BX = torch.cat([dense_BN, pooled_BFD.flatten(1)], dim=1)
        crossed_BX = x0_BX
        for cross in self.crosses:
            crossed_BX = cross(x0_BX, crossed_BX)
        return self.join(torch.cat([crossed_BX, self.deep(x0_BX)], dim=1)).squeeze(1)
