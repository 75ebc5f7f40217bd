"""Dropout from few random bits: torch's own draws a number of 53 bits for every weight, which took a quarter of a step.

A weight takes 16 bits of torch's random stream, so that a share is a multiple of 1/65,536; what is kept is scaled by
exactly its inverse.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEVELS = 1 << 16
_PER_WORD = 4


def dropout(weights: Tensor, share: float, *, training: bool = True) -> Tensor:
    """Each weight 0 with probability `share`, else divided by 1 - `share` (Srivastava et al. 2014, section 10).

    Args:
        weights: Floats on the CPU, any shape. The result has their shape and dtype.
        share: From 0 to below 1, rounded to a multiple of 1/65,536. At 0 the result is `weights` itself.
        training: If false, the result is `weights` itself.
    """
    left_out = min(round(share * _LEVELS), _LEVELS - 1)
    if left_out == 0 or not training:
        return weights
    count = weights.numel()
    words = torch.empty(-(-count // _PER_WORD), dtype=torch.int64).random_(-(1 << 63), None)
    levels = words.view(torch.int16)[:count].view(weights.shape)
    kept = levels >= left_out - _LEVELS // 2
    return (weights * kept).mul_(_LEVELS / (_LEVELS - left_out))
