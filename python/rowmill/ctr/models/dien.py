"""Deep interest evolution network (Zhou et al. 2019, arXiv 1809.03672).

Shapes: B rows per batch, N numeric features, S id columns (see `rowmill.ctr.models.history`), P places, H histories,
D weights per row, E = H * D; W is the width of a state, here E.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rowmill.ctr.models.din import mlp_with_dice
from rowmill.ctr.models.history import Histories


class AttentionalGRU(nn.Module):
    """A GRU whose update gate is scaled by the attention weight ``a`` of a place (AUGRU, equations 14 to 16).

    The first gate resets, the second one updates: ``u = a * sigmoid(...)``, ``h = (1 - u) * h + u * candidate``.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inward = nn.Linear(inputs, 3 * width)
        self.recurrent = nn.Linear(width, 3 * width)
        for linear in (self.inward, self.recurrent):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, states_BPW: Tensor, weights_BP: Tensor) -> Tensor:
        """The last state, ``[B, W]``. A place with weight 0 does not change the state."""
        inward_PBG = self.inward(states_BPW).unbind(1)
        state_BW = states_BPW.new_zeros(states_BPW.shape[0], self.recurrent.in_features)
        for inward_BG, weight_B in zip(inward_PBG, weights_BP.unbind(1), strict=True):
            from_reset, from_update, from_new = inward_BG.chunk(3, dim=1)
            reset, update, new = self.recurrent(state_BW).chunk(3, dim=1)
            candidate = torch.tanh(from_new + torch.sigmoid(from_reset + reset) * new)
            gate = weight_B.unsqueeze(1) * torch.sigmoid(from_update + update)
            state_BW = (1 - gate) * state_BW + gate * candidate
        return state_BW


class DIEN(nn.Module):
    """A GRU over the history, attention to the target, a second GRU weighted by the attention, then an MLP.

    In training, a forward sets ``auxiliary_loss``; add it to the loss of the clicks. It is half the mean logistic loss of a
    state's predictions of the next item of its history, against a negative (equation 3). The negative is the item at the
    same place of the previous row of the batch; the paper draws negatives from all items. It is None if no history in
    the batch has two items.

    Attributes:
        auxiliary_losses: The losses whose mean it is, float32 ``[places with a negative]``; None before the first forward,
            and after one in evaluation.
        previous_row: Returns, for a tensor of the batch ``[B, ...]``, the values of the previous row, ``[B, ...]``; that of
            the first row is the last one. A batch in parts of many processes needs another function than `rolled`.

    Args:
        embeddings: called as ``embeddings(ids)``, returns ``[B, S, D]``.
        histories: layout of features, targets and histories in the id columns.
        dim: D.
        dense_features: N.
        hidden: hidden widths of the MLP; a last layer of width 1 follows.

    Example:
        >>> from rowmill.ctr.models import FeatureBags
        >>> bags = FeatureBags(
        ...     [nn.EmbeddingBag(10, 4), nn.EmbeddingBag(10, 4)], bag_of=[0, 1, 1, 1]
        ... )
        >>> layout = Histories(features=2, targets=(1,), places=2)
        >>> model = DIEN(bags, histories=layout, dim=4)
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
        hidden: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        width = len(histories.targets) * dim
        self.embeddings = embeddings
        self.histories = histories
        self.extract = nn.GRU(width, width, batch_first=True)
        self.match = nn.Linear(width, width, bias=False)
        self.evolve = AttentionalGRU(width, width)
        inputs = dense_features + len(histories.others) * dim + 2 * width
        self.layers = mlp_with_dice(inputs, hidden)
        self.auxiliary_losses: Tensor | None = None
        self.previous_row: Callable[[Tensor], Tensor] = rolled

    @property
    def auxiliary_loss(self) -> Tensor | None:
        """Half the mean of ``auxiliary_losses``, a scalar; None without any."""
        losses = self.auxiliary_losses
        return None if losses is None or not len(losses) else losses.mean() / 2

    def forward(self, dense_BN: Tensor, ids_BS: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits of a click, float32 ``[B]``."""
        return self.logits(dense_BN, self.embeddings(ids_BS), lengths_B)

    def logits(self, dense_BN: Tensor, pooled_BSD: Tensor, lengths_B: Tensor) -> Tensor:
        """Logits from pooled vectors ``[B, S, D]``, without the lookup."""
        others_BX, target_BE, history_BPE = self.histories.split(pooled_BSD)
        taken_BP = self.histories.taken(lengths_B)
        # Places are sorted oldest first, so padding after the last item changes no earlier state.
        states_BPW, _ = self.extract(history_BPE)
        scores_BP = (self.match(states_BPW) * target_BE.unsqueeze(1)).sum(2)
        weights_BP = scores_BP.where(taken_BP, -torch.inf).softmax(1)
        # For an empty history all scores are minus infinity, and the softmax is NaN.
        weights_BP = weights_BP.where(taken_BP, 0.0)
        interest_BW = self.evolve(states_BPW, weights_BP)
        self.auxiliary_losses = (
            self._next_place_losses(states_BPW, history_BPE, taken_BP) if self.training else None
        )
        inputs = torch.cat([dense_BN, others_BX, target_BE, interest_BW], dim=1)
        return self.layers(inputs).squeeze(1)

    def _next_place_losses(
        self, states_BPW: Tensor, history_BPE: Tensor, taken_BP: Tensor
    ) -> Tensor:
        before, coming, taken = states_BPW[:, :-1], history_BPE[:, 1:], taken_BP[:, 1:]
        other = self.previous_row(coming)
        # If the previous row's history is shorter, the place has no negative and is skipped.
        both = taken & self.previous_row(taken)
        losses = -logsigmoid((before * coming).sum(2)) - logsigmoid(-(before * other).sum(2))
        return losses[both]


def rolled(values_B: Tensor) -> Tensor:
    """The values of the previous row of a batch, for each row, ``[B, ...]``."""
    return values_B.roll(1, dims=0)
