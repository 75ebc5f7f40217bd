"""Memory for large results of lookups, which is used again when no tensor refers to it any more."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LEAST_BYTES = 1 << 20
"""Smaller results are left to the allocator, which keeps their memory by itself."""
MOST_BYTES = 128 << 20
"""Larger results are left to the allocator, so that a process does not keep much memory that it rarely needs."""
KEPT = 4
"""How many free blocks the process keeps. The one that was freed first goes first."""

_HUGE_PAGE_BYTES = 2 << 20

# Another thread, or the garbage collector, may free a block between any two lines of Python. So every access is a single
# call of a deque, which the interpreter does not interrupt.
free_blocks: deque[NDArray[Any]] = deque(maxlen=KEPT)


def empty(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """A contiguous tensor `dtype` [rows, width] on the CPU with arbitrary content, like `torch.empty`.

    The allocator often returns freed memory of this size to the system. The next result then costs a page fault for
    every 4 KiB, and lookups of wide rows with one id per bag spend half of their CPU time in the system. Here, the memory
    is kept and used again after the tensor, and all views of it, are gone. Its storage cannot be resized.
    """
    size = rows * width * dtype.itemsize
    if not LEAST_BYTES <= size <= MOST_BYTES:
        return torch.empty(rows, width, dtype=dtype)
    block = _take(size)
    lent = block[:size]
    # The tensor holds this array, and nothing else does.
    weakref.finalize(lent, free_blocks.append, block).atexit = False
    return torch.from_numpy(lent).view(dtype).view(rows, width)


def _take(size: int) -> NDArray[Any]:
    """A free block for `size` bytes that wastes at most half of its memory, or a new block."""
    for _ in range(KEPT):
        try:
            block = free_blocks.popleft()
        except IndexError:
            break
        if size <= block.nbytes <= 2 * size:
            return block
        free_blocks.append(block)
    return _map(size)


def _map(size: int) -> NDArray[Any]:
    """New memory of at least `size` bytes, in huge pages where the system has them."""
    size = -(-size // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # A kernel without huge pages refuses the advice.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
