"""The softmax loss over the dot products of queries with all candidates, computed for a block of queries at a time.

`softmax(query @ candidates.T, ...)` writes a matrix of scores, and autograd keeps more matrices of that size: 160 MiB
each for 40,000 entities and 1,024 queries. Writing and reading them takes more than half of a step. Here the loss and
the gradients of a block of queries are computed together, and the next block reuses the memory.

Shapes: B queries, N candidates, D weights, P right answers, as in `rowmill.kge.losses`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rowmill.ops.linear import linear

_BLOCK_FLOATS = 1 << 24
"""Scores in a block. Each block adds to the gradient of all candidates; this many scores make that cost small."""


def dense_softmax(
    query_BD: Tensor,
    candidates_ND: Tensor,
    queries_P: Tensor,
    columns_P: Tensor,
    *,
    smoothing: float = 0.0,
) -> Tensor:
    """The value and gradients of `softmax(query @ candidates.T, queries, columns, smoothing=...)`; a scalar.

    Within `torch.autocast`, the scores and both gradients are multiplied in the autocast dtype. The rest is float32.
    """
    return _DenseSoftmax.apply(query_BD, candidates_ND, queries_P, columns_P, smoothing)  # pyright: ignore[reportReturnType]


class _DenseSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        query_BD: Tensor,
        candidates_ND: Tensor,
        queries_P: Tensor,
        columns_P: Tensor,
        smoothing: float,
    ) -> Tensor:
        queries, (candidates, dim) = len(query_BD), candidates_ND.shape
        block = max(_BLOCK_FLOATS // candidates, 1)
        no_bias = candidates_ND.new_zeros(candidates)
        narrow_ND = candidates_ND
        if torch.is_autocast_enabled("cpu"):
            narrow_ND = candidates_ND.to(torch.get_autocast_dtype("cpu"))
        query_gradient = torch.empty_like(query_BD)
        # Transposed: the product then takes three quarters of the time.
        candidate_gradient_DN = candidates_ND.new_zeros(dim, candidates)
        total = query_BD.new_zeros(())
        for start in range(0, queries, block):
            part_bD = query_BD[start : start + block]
            scores_bN = linear(part_bD, narrow_ND, no_bias).float()
            most_b1 = scores_bN.amax(dim=1, keepdim=True)
            chances_bN = scores_bN.sub_(most_b1).exp_()
            sums_b1 = chances_bN.sum(dim=1, keepdim=True)
            total += (sums_b1.log() + most_b1).sum()
            scale_b1 = 1.0 / (sums_b1 * queries)
            chances_bN = chances_bN.to(narrow_ND.dtype)
            against_bD = linear(chances_bN, narrow_ND.t(), candidates_ND.new_zeros(dim))
            query_gradient[start : start + block] = against_bD * scale_b1
            candidate_gradient_DN += linear((part_bD * scale_b1).t(), chances_bN.t(), no_bias)
        candidate_gradient = candidate_gradient_DN.t().contiguous()
        # Subtract the target distribution: an equal share for each right answer, plus the smoothing for every candidate.
        counts_B = torch.bincount(queries_P, minlength=queries)
        share_P1 = ((1.0 - smoothing) / (counts_B * queries))[queries_P].unsqueeze(1)
        right_PD, asked_PD = candidates_ND[columns_P] * share_P1, query_BD[queries_P]
        total = total / queries - (right_PD * asked_PD).sum()
        query_gradient.index_add_(0, queries_P, right_PD, alpha=-1)
        candidate_gradient.index_add_(0, columns_P, asked_PD * share_P1, alpha=-1)
        if smoothing:
            even = smoothing / (candidates * queries)
            candidate_sum_D, query_sum_D = candidates_ND.sum(dim=0), query_BD.sum(dim=0)
            total = total - even * (candidate_sum_D * query_sum_D).sum()
            query_gradient -= even * candidate_sum_D
            candidate_gradient -= even * query_sum_D
        ctx.save_for_backward(query_gradient, candidate_gradient)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        query_gradient, candidate_gradient = ctx.saved_tensors
        return gradient * query_gradient, gradient * candidate_gradient, None, None, None
