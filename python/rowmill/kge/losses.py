"""Losses over the scores of queries and their candidates, and penalties on rows.

Shapes: B queries, C candidates, P right answers. `queries_P` and `columns_P` say which candidate of which query is
right; every query has at least one. A score of minus infinity is a candidate that does not count.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def softmax(
    scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor, *, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the softmax over candidates with the right ones, equally likely each; mean over queries.

    With `smoothing` e, the right ones share 1 - e and all candidates e.
    """
    right_B = _means(scores_BC, queries_P, columns_P)
    if smoothing:
        right_B = (1.0 - smoothing) * right_B + smoothing * scores_BC.mean(dim=1)
    return (scores_BC.logsumexp(dim=1) - right_B).mean()


def logistic(scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor) -> Tensor:
    """Binary cross-entropy of every candidate, summed over candidates; mean over queries."""
    # -log(1 - sigmoid(s)) = softplus(s), and -log(sigmoid(s)) is s less.
    right = scores_BC[queries_P, columns_P].sum()
    return (softplus(scores_BC).sum() - right) / len(scores_BC)


def self_adversarial(
    scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Half of -log sigmoid of the right ones and half of the wrong ones, weighted by how wrong they look.

    Sun et al. 2019 (arXiv 1902.10197), equations 4 and 5: a wrong candidate's weight is its softmax among the wrong
    ones, with no gradient of its own. Mean over queries.
    """
    wrong = torch.ones_like(scores_BC, dtype=torch.bool)
    wrong[queries_P, columns_P] = False
    logits = (scores_BC.detach() * temperature).masked_fill(~wrong, -torch.inf)
    # A query without a wrong candidate has no weights at all.
    weights = logits.softmax(dim=1).nan_to_num(0.0)
    wrongs = (weights * softplus(scores_BC.masked_fill(~wrong, 0.0))).sum(dim=1).mean()
    rights_P = softplus(-scores_BC[queries_P, columns_P])
    counts_B = torch.bincount(queries_P, minlength=len(scores_BC))
    rights = (rights_P / counts_B[queries_P]).sum() / len(scores_BC)
    return (rights + wrongs) / 2


def penalty(magnitudes: Tensor, power: int) -> Tensor:
    """The sum of powers of absolute values: 2 is L2, 3 is N3 (Lacroix et al. 2018, arXiv 1806.07297)."""
    return magnitudes.pow(power).sum()


def _means(scores_BC: Tensor, queries_P: Tensor, columns_P: Tensor) -> Tensor:
    """The mean score of the right answers of each query."""
    picked_P = scores_BC[queries_P, columns_P]
    if len(queries_P) == len(scores_BC):
        return picked_P  # One right answer each, in order.
    counts_B = torch.bincount(queries_P, minlength=len(scores_BC))
    sums_B = picked_P.new_zeros(len(scores_BC)).index_add(0, queries_P, picked_P)
    return sums_B / counts_B
