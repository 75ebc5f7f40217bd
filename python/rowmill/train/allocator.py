"""Setting of glibc's allocator that keeps freed tensor memory in the process."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory of this process for later allocations; return whether that worked.

    By default glibc maps every block of 32 MiB or more anew and unmaps it when it is freed. A step with tensors of that
    size, such as the gradient of a block of all entities, then spends half of its time in page faults. With this setting
    the process keeps as much memory as its largest step needed. Other C libraries are left unchanged.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
