"""Conversion of float tensors to arrays for kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


def floats(tensor: Tensor) -> NDArray[Any]:
    """A float32 array, or for bfloat16, which NumPy lacks, its bits as int16. Contiguous tensors are not copied."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    tensor = tensor.contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
