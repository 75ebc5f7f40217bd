"""The dot interaction on the CPU: one pass over the samples per forward and per backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill import _core
from rowmill.ops.floats import floats

if TYPE_CHECKING:
    from torch import Tensor


def interaction(dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
    """As `reference.interaction`, for float32 or bfloat16; products are summed in float32."""
    batch, features, dim = pooled_BFD.shape
    out = dense_BD.new_empty(batch, dim + features * (features + 1) // 2)
    _core.interact(
        floats(dense_BD),
        floats(pooled_BFD),
        floats(out),
        (batch, features, dim),
        torch.get_num_threads(),
    )
    return out


def interaction_backward(
    gradient: Tensor, dense_BD: Tensor, pooled_BFD: Tensor
) -> tuple[Tensor, Tensor]:
    """As `reference.interaction_backward`, for float32 or bfloat16; sums are computed in float32."""
    batch, features, dim = pooled_BFD.shape
    dense_gradient = dense_BD.new_empty(batch, dim)
    pooled_gradient = pooled_BFD.new_empty(batch, features, dim)
    _core.interact_backward(
        floats(dense_BD),
        floats(pooled_BFD),
        floats(gradient),
        floats(dense_gradient),
        floats(pooled_gradient),
        (batch, features, dim),
        torch.get_num_threads(),
    )
    return dense_gradient, pooled_gradient
