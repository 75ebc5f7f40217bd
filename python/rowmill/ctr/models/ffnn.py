"""A plain feed-forward network over numeric features and pooled vectors.

Shapes: B rows per batch, N numeric features, F id features, D weights per row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp


class FFNN(nn.Module):
    """One MLP over all inputs, concatenated.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, F, D]``.
        features: F.
        dim: D.
        dense_features: N.
        hidden: hidden widths; a last layer of width 1 follows.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = FFNN(bags, features=3, dim=4, dense_features=2, hidden=[8])
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
        hidden: Sequence[int] = (128, 64),
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = mlp(dense_features + features * dim, [*hidden, 1], relu_last=False)

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, F, D]``, without the lookup."""
        return self.layers(torch.cat([dense_BN, pooled_BFD.flatten(1)], dim=1)).squeeze(1)
