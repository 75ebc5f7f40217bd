"""DLRM: bottom MLP, embeddings, pairwise dot products, top MLP (Naumov et al. 2019, arXiv 1906.00091).

Shapes: B rows per batch, N numeric features, F id features, D weights per row.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp
from rowmill.ops.interaction import interaction


class DLRM(nn.Module):
    """Deep learning recommendation model.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, F, D]``.
        features: F.
        dim: D.
        dense_features: N.
        bottom: hidden widths of the bottom MLP; a last layer of width D follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.

    Example:
        >>> import torch
        >>> from rowmill.ctr.models import FeatureBags
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
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, F, D]``, without the lookup."""
        # Under autocast the bottom MLP returns bfloat16; the interaction needs one dtype for all vectors.
        dense_BD = self.bottom(dense_BN).to(pooled_BFD.dtype)
        return self.top(interaction(dense_BD, pooled_BFD)).squeeze(1)
