"""The hash of category and id that determines the owning rank of a row, in plain torch.

The hash includes the category. With the id alone, the small, hot ids of all categories would belong to the same ranks.
Within a category the hash is a bijection, so that the id can be computed from hash and category.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_OWNER_SEED = 0x6F77_6E65_7221_0001
_STEP = 0x9E37_79B9_7F4A_7C15
_FIRST, _SECOND = 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB


def states(categories: Sequence[int]) -> Tensor:
    """The value that ids of each category are XORed with before hashing, int64 [C]."""
    bits = [_signed(((_OWNER_SEED ^ category) + _STEP) % 2**64) for category in categories]
    return _mix(torch.tensor(bits, dtype=torch.int64))


def hashed(ids: Tensor, states: Tensor) -> Tensor:
    """Hashes of ids, given the state of each id's category."""
    return _mix(states ^ ids)


def unhashed(hashes: Tensor, states: Tensor) -> Tensor:
    """The ids of hashes: the inverse of `hashed`."""
    return _unmix(hashes) ^ states


def owner(hashes: Tensor, ranks: int) -> Tensor:
    """The owning rank of every row: the upper half of its hash, scaled to [0, ranks)."""
    return (_shifted(hashes, 32) * ranks) >> 32


def _mix(bits: Tensor) -> Tensor:
    """Stafford's Mix13, a bijection on 64 bits."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def _unmix(bits: Tensor) -> Tensor:
    bits = bits ^ _shifted(bits, 31) ^ _shifted(bits, 62)
    bits = bits * _signed(pow(_SECOND, -1, 2**64))
    bits = bits ^ _shifted(bits, 27) ^ _shifted(bits, 54)
    bits = bits * _signed(pow(_FIRST, -1, 2**64))
    return bits ^ _shifted(bits, 30) ^ _shifted(bits, 60)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Logical (unsigned) shift right."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
