"""Collectives with gradients, for models whose forward needs values of all samples of a batch.

They work on small tensors, which each rank receives from all others. In the backward, too, every rank must make the same
calls: keep the result in the graph of the loss, also on a rank without samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.distributed.ranks import Ranks


def summed(ranks: Ranks, values: Tensor) -> Tensor:
    """The sum of a tensor over all ranks, added in the order of ranks: equal bits on all ranks.

    The gradient is the sum over the ranks, too.

    Args:
        ranks: The ranks.
        values: Tensor of the same shape and dtype on every rank.
    """
    return cast("Tensor", _Summed.apply(ranks, values))


def received(ranks: Ranks, values: Tensor, sources: Sequence[int]) -> Tensor:
    """The tensor of rank `sources[ranks.rank]`, whose gradient goes back to that rank.

    Args:
        ranks: The ranks.
        values: Tensor of the same shape and dtype on every rank.
        sources: By receiving rank, the rank whose tensor it gets; equal on all ranks.
    """
    return cast("Tensor", _Received.apply(ranks, values, sources))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, values: Tensor) -> Tensor:
        ctx.ranks = ranks
        return _added(ranks.stack(values.cpu())).to(values.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        return None, _added(ctx.ranks.stack(gradient.cpu())).to(gradient.device)


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, values: Tensor, sources: Sequence[int]) -> Tensor:
        ctx.ranks, ctx.sources = ranks, sources
        return ranks.stack(values.cpu())[sources[ranks.rank]].to(values.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        of_ranks = ctx.ranks.stack(gradient.cpu())
        mine = [rank for rank, source in enumerate(ctx.sources) if source == ctx.ranks.rank]
        back = _added(of_ranks[mine]) if mine else torch.zeros_like(of_ranks[0])
        return None, back.to(gradient.device), None


def _added(of_ranks: Tensor) -> Tensor:
    first, *others = of_ranks
    total = first.clone()
    for other in others:
        total += other
    return total
