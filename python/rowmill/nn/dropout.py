"""Dropout from 16 random bits per weight. torch's own dropout draws 53 bits per weight, which took a quarter of a step.

The dropout share is therefore a multiple of 1/65,536. Kept weights are scaled by the inverse of the exact share kept.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

_LEVELS = 1 << 16
_PER_WORD = 4
_STEP = -0x61C8864680B583EB
"""The odd number of SplitMix64, 0x9E3779B97F4A7C15, as a signed one."""


def dropout(
    weights: Tensor,
    share: float,
    *,
    training: bool = True,
    rows: Tensor | None = None,
    of: int | None = None,
) -> Tensor:
    """Set each weight to 0 with probability `share`, else divide it by 1 - `share` (Srivastava et al. 2014, section 10).

    Args:
        weights: Floats on the CPU, any shape. The result has their shape and dtype.
        share: In [0, 1), rounded to a multiple of 1/65,536. At 0 the result is `weights` itself.
        training: If false, the result is `weights` itself.
        rows: `weights` are these rows of a matrix of `of` rows, and get the random bits that they have in the matrix. So
            ranks with equal random streams drop what one process would. int64, one per row of `weights`.
        of: Rows of that matrix.
    """
    left_out = min(round(share * _LEVELS), _LEVELS - 1)
    if left_out == 0 or not training:
        return weights
    shape = weights.shape if rows is None or of is None else (of, *weights.shape[1:])
    count = prod(shape)
    words = torch.empty(-(-count // _PER_WORD), dtype=torch.int64).random_(-(1 << 63), None)
    levels = words.view(torch.int16)[:count].view(shape)
    if rows is not None:
        levels = levels[rows]
    kept = levels >= left_out - _LEVELS // 2
    return (weights * kept).mul_(_LEVELS / (_LEVELS - left_out))


def named_dropout(
    weights: Tensor, share: float, names: Tensor | None, *, training: bool = True
) -> Tensor:
    """Dropout whose random bits depend on the names of rows, and not on their order or on the other rows.

    Ranks with equal random streams, each with some of the rows of a batch, drop what one rank with all rows would.

    Args:
        weights: As in `dropout`; the first dimension is that of the rows.
        share: As in `dropout`.
        names: int64, a number per row; None: `dropout`, whose random bits depend on the order.
        training: As in `dropout`.
    """
    if names is None:
        return dropout(weights, share, training=training)
    left_out = min(round(share * _LEVELS), _LEVELS - 1)
    if left_out == 0 or not training:
        return weights
    key = int(torch.empty((), dtype=torch.int64).random_(-(1 << 63), None))
    width = weights[0].numel() if len(weights) else 0
    words = torch.arange(-(-width // _PER_WORD)) * _STEP
    of_rows = _mixed(names + key)[:, None]
    levels = _mixed(of_rows + words).view(torch.int16)[:, :width].reshape(weights.shape)
    kept = levels >= left_out - _LEVELS // 2
    return (weights * kept).mul_(_LEVELS / (_LEVELS - left_out))


def _mixed(words: Tensor) -> Tensor:
    """SplitMix64's hash of 64-bit words (Steele et al. 2014)."""
    words = words * _STEP
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        # torch shifts int64 arithmetically: the mask clears the copies of the sign.
        words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return words ^ ((words >> 31) & ((1 << 33) - 1))
