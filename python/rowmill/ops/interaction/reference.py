"""The dot interaction in plain torch: the definition that the other implementations match.

Shapes: B samples, F pooled vectors of a sample, V = F + 1 vectors with the dense one, D floats of a vector,
P = F (F + 1) / 2 pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def interaction(dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
    """The dense vector, then the dot product of every pair of vectors, `[B, D + P]`."""
    vectors_BVD = torch.cat([dense_BD.unsqueeze(1), pooled_BFD], dim=1)
    return torch.cat([dense_BD, dot_interaction(vectors_BVD)], dim=1)


def dot_interaction(vectors_BVD: Tensor) -> Tensor:
    """Dot product of every pair of distinct vectors: the lower triangle without the diagonal, row by row.

    Example:
        >>> dot_interaction(torch.tensor([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]]))
        tensor([[2., 0., 3.]])
    """
    products_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
    # One flat index instead of two: the backward pass of index_select takes half the time.
    return products_BVV.flatten(1).index_select(1, _lower_triangle(vectors_BVD))


def interaction_backward(
    gradient: Tensor, dense_BD: Tensor, pooled_BFD: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of both inputs from the gradient of the output; itself differentiable.

    The gradient of a pair's product, times one vector of the pair, is a term of the other vector's gradient.
    """
    dim = dense_BD.shape[1]
    vectors_BVD = torch.cat([dense_BD.unsqueeze(1), pooled_BFD], dim=1)
    batch, count, _ = vectors_BVD.shape
    pairs_BP = gradient[:, dim:]
    lower_BVV = (
        pairs_BP.new_zeros(batch, count * count)
        .index_copy(1, _lower_triangle(vectors_BVD), pairs_BP)
        .view(batch, count, count)
    )
    sums_BVD = torch.bmm(lower_BVV + lower_BVV.transpose(1, 2), vectors_BVD)
    return sums_BVD[:, 0] + gradient[:, :dim], sums_BVD[:, 1:]


def _lower_triangle(vectors_BVD: Tensor) -> Tensor:
    count = vectors_BVD.shape[1]
    row, column = torch.tril_indices(count, count, offset=-1, device=vectors_BVD.device)
    return row * count + column
