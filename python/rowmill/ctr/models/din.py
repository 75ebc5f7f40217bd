"""Deep interest network: a history, weighted by its relevance to the target item (Zhou et al. 2018, arXiv 1706.06978).

Shapes: B rows per batch, N numeric features, S id columns (see `rowmill.ctr.models.history`), P places, H histories,
D weights per row, E = H * D.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rowmill.ctr.models.history import Histories
from rowmill.ctr.models.layers import mlp

DICE_EPS = 1e-8


def normalized(x_BW: Tensor, running_mean_W: Tensor, running_var_W: Tensor) -> Tensor:
    """Normalise over the batch, and update the running averages in place. One row has no variance: by the averages."""
    return nn.functional.batch_norm(
        x_BW, running_mean_W, running_var_W, training=len(x_BW) > 1, eps=DICE_EPS
    )


class Dice(nn.Module):
    """A smooth PReLU with its bend at the mean of its inputs (equation 4): ``p * x + (1 - p) * alpha * x``.

    ``p`` is the sigmoid of normalised x. As in batch normalisation, training normalises over the batch, and evaluation
    by running averages.

    Attributes:
        normalized: Normalises in training. A batch in parts of many processes needs another function than `normalized`.
    """

    running_mean: Tensor
    running_var: Tensor
    normalized: Callable[[Tensor, Tensor, Tensor], Tensor]

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.normalized = normalized

    def forward(self, x_BW: Tensor) -> Tensor:
        """``[B, W]`` to ``[B, W]``."""
        averages = self.running_mean, self.running_var
        if self.training:
            normal_BW = self.normalized(x_BW, *averages)
        else:
            normal_BW = nn.functional.batch_norm(x_BW, *averages, eps=DICE_EPS)
        p_BW = normal_BW.sigmoid()
        return p_BW * x_BW + (1 - p_BW) * self.alpha * x_BW


class ActivationUnit(nn.Module):
    """The relevance of each place of a history for the target (figure 2, right; section 4.3).

    A small MLP over both vectors, their difference and their product. Weights are not normalised: their sum expresses
    the strength of the interest.
    """

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 4 * width
        for outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.Linear(inputs, 1))

    def forward(self, target_BE: Tensor, history_BPE: Tensor) -> Tensor:
        """Weights of the places, ``[B, P]``."""
        target_BPE = target_BE.unsqueeze(1).expand_as(history_BPE)
        pairs = [history_BPE, target_BPE, history_BPE - target_BPE, history_BPE * target_BPE]
        return self.layers(torch.cat(pairs, dim=2)).squeeze(2)


class DIN(nn.Module):
    """An MLP with Dice over all features, the target and the weighted sum of the history.

    Args:
        embeddings: called as ``embeddings(ids)``, returns ``[B, S, D]``.
        histories: layout of features, targets and histories in the id columns.
        dim: D.
        dense_features: N.
        attention: hidden widths of the activation unit.
        hidden: hidden widths of the MLP; a last layer of width 1 follows.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(
        ...     [nn.EmbeddingBag(10, 4), nn.EmbeddingBag(10, 4)], bag_of=[0, 1, 1, 1]
        ... )
        >>> layout = Histories(features=2, targets=(1,), places=2)
        >>> model = DIN(bags, histories=layout, dim=4)
        >>> ids, lengths = torch.zeros(5, 4, dtype=torch.int64), torch.tensor([2, 1, 0, 2, 2])
        >>> model(torch.rand(5, 0), ids, lengths).shape
        torch.Size([5])
    """

    def __init__(
        self,
        embeddings: nn.Module,
        *,
        histories: Histories,
        dim: int,
        dense_features: int = 0,
        attention: Sequence[int] = (80, 40),
        hidden: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        width = len(histories.targets) * dim
        self.embeddings = embeddings
        self.histories = histories
        self.attention = ActivationUnit(width, attention)
        inputs = dense_features + len(histories.others) * dim + 2 * width
        self.layers = mlp_with_dice(inputs, hidden)

    def forward(self, dense_BN: Tensor, ids_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids_BS), lengths_B)

    def logits(self, dense_BN: Tensor, pooled_BSD: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, S, D]``, without the lookup."""
        others_BX, target_BE, history_BPE = self.histories.split(pooled_BSD)
        weights_BP = self.attention(target_BE, history_BPE)
        weights_BP = weights_BP.where(self.histories.taken(lengths_B), 0.0)
        interest_BE = (weights_BP.unsqueeze(2) * history_BPE).sum(1)
        inputs = torch.cat([dense_BN, others_BX, target_BE, interest_BE], dim=1)
        return self.layers(inputs).squeeze(1)


def mlp_with_dice(inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Linear layers with Dice between them; the last layer has width 1."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [mlp(inputs, [width], relu_last=False), Dice(width)]
        inputs = width
    return nn.Sequential(*layers, mlp(inputs, [1], relu_last=False))
