"""The dot interaction on the CPU: one pass over the samples, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


def interaction(dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
    """As `reference.interaction`, of float32."""
    batch, features, dim = pooled_BFD.shape
    out = dense_BD.new_empty(batch, dim + features * (features + 1) // 2)
    _core.interact(
        _floats(dense_BD),
        _floats(pooled_BFD),
        out.numpy(),
        (batch, features, dim),
        torch.get_num_threads(),
    )
    return out


def interaction_backward(
    gradient: Tensor, dense_BD: Tensor, pooled_BFD: Tensor
) -> tuple[Tensor, Tensor]:
    """As `reference.interaction_backward`, of float32."""
    batch, features, dim = pooled_BFD.shape
    dense_gradient = dense_BD.new_empty(batch, dim)
    pooled_gradient = pooled_BFD.new_empty(batch, features, dim)
    _core.interact_backward(
        _floats(dense_BD),
        _floats(pooled_BFD),
        _floats(gradient),
        dense_gradient.numpy(),
        pooled_gradient.numpy(),
        (batch, features, dim),
        torch.get_num_threads(),
    )
    return dense_gradient, pooled_gradient


def _floats(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().contiguous().numpy()
