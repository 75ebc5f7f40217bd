"""Settings of glibc's allocator that keep freed tensor memory in the process."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory of this process for later allocations; return whether that worked.

    By default glibc maps every block of 32 MiB or more anew and unmaps it when it is freed. A step with tensors of that
    size, such as the gradient of a block of all entities, then spends half of its time in page faults. With this setting
    the process keeps as much memory as its largest step needed. Other C libraries are left unchanged.

    All threads share one arena. By default glibc has up to 8 per core, and freed memory stays in the arena of the thread
    that allocated it, so the thread of each `Pipeline.run` would map new memory. In every arena but the first, glibc unmaps
    parts that are free, also with this setting. Threads may wait for the one arena; this was measured on two cores only.
    Call this early: the limit is read when a second thread first allocates.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: 1}
    return all([mallopt(name, value) for name, value in settings.items()])
