"""DLRM: bottom MLP, embeddings, pairwise dot products, top MLP (Naumov et al. 2019, arXiv 1906.00091).

Shapes: B rows of a batch, N numeric features, F id features, D weights per row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.models.embeddings import Ids
from rowmill.models.layers import mlp


def dot_interaction(vectors_BVD: Tensor) -> Tensor:
    """Dot product of every pair of distinct vectors: the lower triangle without the diagonal, row by row.

    Example:
        >>> dot_interaction(torch.tensor([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]]))
        tensor([[2., 0., 3.]])
    """
    count = vectors_BVD.shape[1]
    products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
    row, column = torch.tril_indices(count, count, offset=-1, device=vectors_BVD.device)
    # One flat index instead of two: the backward pass of index_select takes half the time.
    return products_BVV.flatten(1).index_select(1, row * count + column)


class DLRM(nn.Module):
    """Deep learning recommendation model.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, gives ``[B, F, D]``.
        features: F.
        dim: D.
        dense_features: N.
        bottom: hidden widths of the bottom MLP; a last layer of width D follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.

    Example:
        >>> from rowmill.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = DLRM(bags, features=3, dim=4, dense_features=2, bottom=[8], top=[8])
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
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.bottom = mlp(dense_features, [*bottom, dim])
        self.top = mlp(dim + (features + 1) * features // 2, [*top, 1], relu_last=False)

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        dense_BD = self.bottom(dense_BN)
        pooled_BFD = self.embeddings(ids, offsets)
        pairs = dot_interaction(torch.cat([dense_BD.unsqueeze(1), pooled_BFD], dim=1))
        return self.top(torch.cat([dense_BD, pairs], dim=1)).squeeze(1)
