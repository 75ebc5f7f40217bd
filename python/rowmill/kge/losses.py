"""Losses over the scores of queries against their candidates, and penalties on rows.

Shapes: B queries, C candidates, P right answers. `queries_P` and `columns_P` are the row and column of each right
answer in the scores; every query has at least one. A score of minus infinity excludes a candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def softmax(
    scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor, *, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the softmax over candidates; the target is uniform over the right ones. Mean over queries.

    With `smoothing` e, the right candidates share a target of 1 - e, and all candidates share e.
    """
    right_B = _means(scores_BC, queries_P, columns_P)
    if smoothing:
        right_B = (1.0 - smoothing) * right_B + smoothing * scores_BC.mean(dim=1)
    return (scores_BC.logsumexp(dim=1) - right_B).mean()


def logistic(scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor) -> Tensor:
    """Binary cross-entropy of every candidate, summed over candidates; mean over queries."""
    # -log(1 - sigmoid(s)) = softplus(s), and -log(sigmoid(s)) = softplus(s) - s.
    right = scores_BC[queries_P, columns_P].sum()
    return (softplus(scores_BC).sum() - right) / len(scores_BC)


def self_adversarial(
    scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """The self-adversarial loss: half from the right candidates, half from the weighted wrong ones. Mean over queries.

    Sun et al. 2019 (arXiv 1902.10197), equations 4 and 5. Right candidates have the loss -log sigmoid(score), wrong ones
    -log sigmoid(-score). The weight of a wrong candidate is its softmax over the wrong ones at `temperature`; no gradient
    flows through the weights.
    """
    wrong = torch.ones_like(scores_BC, dtype=torch.bool)
    wrong[queries_P, columns_P] = False
    logits = (scores_BC.detach() * temperature).masked_fill(~wrong, -torch.inf)
    # A query without wrong candidates has a softmax over nothing, which is NaN: its weights are 0.
    weights = logits.softmax(dim=1).nan_to_num(0.0)
    wrongs = (weights * softplus(scores_BC.masked_fill(~wrong, 0.0))).sum(dim=1).mean()
    rights_P = softplus(-scores_BC[queries_P, columns_P])
    counts_B = torch.bincount(queries_P, minlength=len(scores_BC))
    rights = (rights_P / counts_B[queries_P]).sum() / len(scores_BC)
    return (rights + wrongs) / 2


def penalty(magnitudes: Tensor, power: int) -> Tensor:
    """The sum of absolute values to a power: 2 gives L2, 3 gives N3 (Lacroix et al. 2018, arXiv 1806.07297)."""
    return magnitudes.pow(power).sum()


def _means(scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor) -> Tensor:
    """The mean score of the right answers of each query."""
    picked_P = scores_BC[queries_P, columns_P]
    if len(queries_P) == len(scores_BC):
        return picked_P  # One right answer each, in order.
    counts_B = torch.bincount(queries_P, minlength=len(scores_BC))
    sums_B = picked_P.new_zeros(len(scores_BC)).index_add(0, queries_P, picked_P)
    return sums_B / counts_B
