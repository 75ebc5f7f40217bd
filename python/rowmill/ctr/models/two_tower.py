"""Two towers: a user vector and an item vector, whose dot product is the logit (Yi et al. 2019, section 3).

The towers share nothing but that product, so item vectors can be computed in advance and searched.

Shapes: B rows per batch, N numeric features, F id features, P places of a history, D weights per row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.history import Histories
from rowmill.ctr.models.layers import mlp


class TwoTower(nn.Module):
    """One MLP over the user's features, one over the item's features, and the dot product of their outputs.

    Args:
        embeddings: called as ``embeddings(ids)``, returns ``[B, F, D]``, or ``[B, S, D]`` with histories.
        features: F.
        items: numbers of the features that describe the item; the others describe the user.
        dim: D.
        dense_features: N, inputs of the user tower.
        histories: layout of histories; the mean vector of a history is an input of the user tower.
        tower: hidden widths of both towers.
        width: width of the user and item vectors.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = TwoTower(bags, features=3, items=[2], dim=4, dense_features=2)
        >>> model(torch.rand(5, 2), torch.zeros(5, 3, dtype=torch.int64)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        features: int,
        items: Sequence[int],
        dim: int,
        dense_features: int = 0,
        histories: Histories | None = None,
        tower: Sequence[int] = (128,),
        width: int = 32,
    ) -> None:
        super().__init__()
        if not 0 < len(set(items)) < features or not all(0 <= item < features for item in items):
            raise ValueError(
                f"items must name some of the {features} features, but not all, got {list(items)}"
            )
        self.embeddings = embeddings
        self.histories = histories
        self.items = list(items)
        self.users = [feature for feature in range(features) if feature not in self.items]
        done = 0 if histories is None else len(histories.targets)
        inputs = dense_features + (len(self.users) + done) * dim
        self.user = mlp(inputs, [*tower, width], relu_last=False)
        self.item = mlp(len(self.items) * dim, [*tower, width], relu_last=False)

    def forward(self, dense_BN: Tensor, ids_BS: Tensor, lengths_B: Tensor | None = None) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids_BS), lengths_B)

    def logits(
        self, dense_BN: Tensor, pooled_BSD: Tensor, lengths_B: Tensor | None = None
    ) -> Tensor:
        """Logits from pooled vectors, without the lookup."""
        user_BW = self.user_vectors(dense_BN, pooled_BSD, lengths_B)
        return (user_BW * self.item_vectors(pooled_BSD)).sum(1)

    def user_vectors(
        self, dense_BN: Tensor, pooled_BSD: Tensor, lengths_B: Tensor | None = None
    ) -> Tensor:
        """User vectors, ``[B, width]``."""
        inputs = [dense_BN, pooled_BSD[:, self.users].flatten(1)]
        if self.histories is not None:
            if lengths_B is None:
                raise ValueError(
                    "lengths_B is None, but a model with histories needs it: pass the batch's lengths"
                )
            _, _, places_BPE = self.histories.split(pooled_BSD)
            taken_BP1 = self.histories.taken(lengths_B).unsqueeze(2)
            # The mean of an empty history is 0.
            counts_B1 = lengths_B.clamp(min=1).unsqueeze(1)
            inputs.append(places_BPE.where(taken_BP1, 0.0).sum(1) / counts_B1)
        return self.user(torch.cat(inputs, dim=1))

    def item_vectors(self, pooled_BSD: Tensor) -> Tensor:
        """Item vectors, ``[B, width]``."""
        return self.item(pooled_BSD[:, self.items].flatten(1))
