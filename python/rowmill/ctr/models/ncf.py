"""NeuMF, the neural collaborative filtering model (He et al. 2017, arXiv 1708.05031, section 3.4).

Shapes: B rows per batch, N numeric features, D weights per vector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp


class NCF(nn.Module):
    """The elementwise product of a user and an item vector, and an MLP over two others, joined by one linear layer.

    Users and items have two vectors each: the first for the product, the second for the MLP.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, 4, D]`` (user, user, item, item), or the same
            numbers as ``[B, 2, 2 D]``, from one row per user and one per item.
        dim: D.
        dense_features: N, further inputs of the MLP.
        hidden: widths of the MLP.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(4))
        >>> model = NCF(bags, dim=4, hidden=[8])
        >>> model(torch.rand(5, 0), torch.zeros(5, 4, dtype=torch.int64)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        dim: int,
        dense_features: int = 0,
        hidden: Sequence[int] = (64, 32, 16),
    ) -> None:
        super().__init__()
        width = 2 * dim + dense_features
        self.dim = dim
        self.embeddings = embeddings
        self.layers = mlp(width, hidden)
        self.join = mlp(dim + (hidden[-1] if hidden else width), [1], relu_last=False)

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled: Tensor) -> Tensor:
        """Logits from pooled vectors, without the lookup."""
        user_BD, user_mlp_BD, item_BD, item_mlp_BD = pooled.reshape(-1, 4, self.dim).unbind(1)
        deep = self.layers(torch.cat([user_mlp_BD, item_mlp_BD, dense_BN], dim=1))
        return self.join(torch.cat([user_BD * item_BD, deep], dim=1)).squeeze(1)
