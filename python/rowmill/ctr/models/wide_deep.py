"""Wide & Deep: a linear model over ids plus a deep one, for one task or several (Cheng et al. 2016, arXiv 1606.07792).

Both halves use the same row of an id: its first weight is the id's weight in the wide half, the other weights are its
vector in the deep half. To use crossed features, as the paper does, put the ids of a cross into the log as a further id
column.

An id's weight is added to the logit as it is, so a feature that is added to a trained model would change predictions by the
initial weights of its ids. Its sum has a factor, its *gate*, which begins at 0.

Shapes: B rows per batch, N numeric features, F id features, D weights per row, T tasks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.embeddings import Ids
from rowmill.ctr.models.layers import mlp


class WideDeep(nn.Module):
    """The sum of a linear model and of one MLP over numeric features and vectors.

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, F, D]``.
        features: F.
        dim: D, at least 2: one weight for the wide half, the others for the deep half.
        dense_features: N.
        hidden: hidden widths of the deep half; a last layer of width 1 follows.
        gated: numbers of the features with a gate.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = WideDeep(bags, features=3, dim=4, dense_features=2, hidden=[8])
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
        gated: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.wide = _Wide(dense_features, 1, features, gated)
        deep = dense_features + features * (dim - 1)
        self.deep = mlp(deep, [*hidden, 1], relu_last=False)

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """The same from pooled vectors: all of the model but the embeddings."""
        wide_B1 = self.wide(dense_BN, pooled_BFD)
        return (wide_B1 + self.deep(_deep_inputs(dense_BN, pooled_BFD))).squeeze(1)


class MultiTaskWideDeep(nn.Module):
    """Wide & Deep for several tasks: a shared bottom, and for each task a tower and a wide half.

    The tasks share an id's weight in the wide half, and its vector (the shared bottom of Caruana 1997, as in Zhao et al.
    2019, Recommending what video to watch next).

    Args:
        embeddings: called as ``embeddings(ids, offsets)``, returns ``[B, F, D]``.
        features: F.
        dim: D, at least 2.
        tasks: T.
        dense_features: N.
        shared: widths of the shared bottom.
        tower: hidden widths of every task's tower; a last layer of width 1 follows.
        gated: numbers of the features with a gate.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(nn.EmbeddingBag(10, 4) for _ in range(3))
        >>> model = MultiTaskWideDeep(bags, features=3, dim=4, tasks=2, dense_features=2)
        >>> model(torch.rand(5, 2), torch.zeros(5, 3, dtype=torch.int64)).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        features: int,
        dim: int,
        tasks: int,
        dense_features: int = 13,
        shared: Sequence[int] = (128,),
        tower: Sequence[int] = (64,),
        gated: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.wide = _Wide(dense_features, tasks, features, gated)
        width = dense_features + features * (dim - 1)
        self.shared = mlp(width, shared)
        inputs = shared[-1] if shared else width
        self.towers = nn.ModuleList(mlp(inputs, [*tower, 1], relu_last=False) for _ in range(tasks))

    def forward(
        self, dense_BN: Tensor, ids: Ids, offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Logits of every task, float32 ``[B, T]``."""
        return self.logits(dense_BN, self.embeddings(ids, offsets))

    def logits(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """The same from pooled vectors: all of the model but the embeddings."""
        shared = self.shared(_deep_inputs(dense_BN, pooled_BFD))
        deep_BT = torch.cat([tower(shared) for tower in self.towers], dim=1)
        return self.wide(dense_BN, pooled_BFD) + deep_BT


class _Wide(nn.Module):
    """A linear model of numeric features for T tasks, and the sum of every id's weight."""

    def __init__(
        self, dense_features: int, tasks: int, features: int, gated: Sequence[int]
    ) -> None:
        super().__init__()
        self._gated = list(gated)
        self._open = [feature for feature in range(features) if feature not in gated]
        # Linear models start at zero; N may be 0.
        self.weight = nn.Parameter(torch.zeros(tasks, dense_features))
        self.bias = nn.Parameter(torch.zeros(tasks))
        self.gates = nn.Parameter(torch.zeros(len(self._gated))) if self._gated else None

    def forward(self, dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
        """``[B, T]``."""
        weights_BF = pooled_BFD[:, :, 0]
        if self.gates is None:
            ids_B1 = weights_BF.sum(1, keepdim=True)
        else:
            open_B1 = weights_BF[:, self._open].sum(1, keepdim=True)
            ids_B1 = open_B1 + (weights_BF[:, self._gated] * self.gates).sum(1, keepdim=True)
        return nn.functional.linear(dense_BN, self.weight, self.bias) + ids_B1


def _deep_inputs(dense_BN: Tensor, pooled_BFD: Tensor) -> Tensor:
    return torch.cat([dense_BN, pooled_BFD[:, :, 1:].flatten(1)], dim=1)
