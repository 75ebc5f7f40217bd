"""NeuMF, the neural collaborative filtering model (He et al. 2017, arXiv 1708.05031, section 3.4).

Shapes: B rows of a batch, N numeric features, D weights per vector.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp


class NCF(nn.Module):
    """The product of two vectors beside an MLP over two other ones, joined by one linear layer.

    A user and an item have two vectors each, one for the product and one for the MLP.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, gives ``[B, 4, D]``: user and user, item and item, the
            first of each for the product; or the same as ``[B, 2, 2 D]``, from one row per user and one per item.
        dim: D.
        dense_features: N, more inputs of the MLP.
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
        """The same from pooled vectors: all of the model but the embeddings."""
        user_BD, user_mlp_BD, item_BD, item_mlp_BD = pooled.reshape(-1, 4, self.dim).unbind(1)
        deep = self.layers(torch.cat([user_mlp_BD, item_mlp_BD, dense_BN], dim=1))
        return self.join(torch.cat([user_BD * item_BD, deep], dim=1)).squeeze(1)
