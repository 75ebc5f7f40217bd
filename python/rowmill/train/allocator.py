"""What the C library does with memory that tensors of a step free."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Make the C library keep what is freed for the next allocation, of this whole process; returns whether it does.

    glibc maps every block of 32 MiB or more anew and gives it back when it is freed. A step whose tensors are that large,
    such as the gradient of a block of all entities, then spends half of its time in page faults. Such a process holds as
    much memory as its largest step needed; one whose tensors are smaller behaves as before. Where the C library is not
    glibc nothing is changed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
