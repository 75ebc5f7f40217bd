"""Parts of click models that need all rows of a batch, where each rank has a part of the rows.

Shapes: B rows of this rank, W widths of a layer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rowmill.ctr.models import DIEN
from rowmill.ctr.models.din import DICE_EPS, Dice
from rowmill.distributed.gradients import received, summed

if TYPE_CHECKING:
    from rowmill.distributed import Ranks

_MOMENTUM = 0.1
"""Weight of a batch in the running averages, as in `torch.nn.functional.batch_norm`."""


def use_whole_batch(model: nn.Module, ranks: Ranks) -> None:
    """Let a click model normalise over the rows of all ranks, and take negatives from them, as one process does."""
    for module in model.modules():
        if isinstance(module, Dice):
            module.normalized = partial(_normalized, ranks)
        elif isinstance(module, DIEN):
            module.previous_row = partial(_previous_row, ranks)


def _normalized(
    ranks: Ranks, x_BW: Tensor, running_mean_W: Tensor, running_var_W: Tensor
) -> Tensor:
    """As `rowmill.ctr.models.din.normalized`. A collective, with another one in the backward."""
    exact_BW = x_BW.double()
    # In float64 the difference below has the precision that a second pass over float32 has.
    moments = torch.stack([torch.ones_like(exact_BW), exact_BW, exact_BW.square()]).sum(1)
    count_W, sum_W, squares_W = summed(ranks, moments)
    count = int(count_W[0])
    mean_W, var_W = running_mean_W, running_var_W
    if count > 1:
        mean_W = sum_W / count
        var_W = (squares_W / count - mean_W.square()).clamp_min(0)
        with torch.no_grad():
            running_mean_W.lerp_(mean_W.to(running_mean_W), _MOMENTUM)
            unbiased_W = var_W * (count / (count - 1))
            running_var_W.lerp_(unbiased_W.to(running_var_W), _MOMENTUM)
    normal_BW = (x_BW - mean_W.to(x_BW)) * (var_W + DICE_EPS).rsqrt().to(x_BW)
    return normal_BW


def _previous_row(ranks: Ranks, values_B: Tensor) -> Tensor:
    """As `rowmill.ctr.models.dien.rolled`. A collective, with another one in the backward."""
    counts: list[int] = ranks.stack(torch.tensor([len(values_B)])).view(-1).numpy().tolist()
    filled = [rank for rank, count in enumerate(counts) if count]
    # The row before the first one of a rank is the last one of the nearest rank before it that has rows.
    sources = [
        max((other for other in filled if other < rank), default=filled[-1])
        for rank in range(ranks.count)
    ]
    # The sum over no rows is zero, and in the graph: all ranks join in the backward.
    last = values_B[-1] if len(values_B) else values_B.sum(0).to(values_B.dtype)
    before = received(ranks, last, sources)
    return torch.cat([before.unsqueeze(0), values_B])[: len(values_B)]
