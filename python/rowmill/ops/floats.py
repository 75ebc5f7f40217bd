"""Tensors of floats as the arrays that kernels take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def floats(tensor: Tensor) -> NDArray[Any]:
    """float32 as it is, bfloat16 as the int16 of its bits: numpy has no such type. No copy of a contiguous tensor."""
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
