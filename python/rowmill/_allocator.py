"""Settings of glibc's allocator that keep freed tensor memory in the process."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt(3), from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_ARENA_MAX = -8
_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


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
    return _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: -1, _ARENA_MAX: 1})


def keep_freed_batches() -> bool:
    """Make glibc keep up to 64 MiB of freed memory in each of its arenas; return whether that worked.

    By default glibc gives freed memory at the end of an arena back to the system when it exceeds twice the largest mapped
    block freed so far. Depending on where small blocks lie, the tensors of every batch of a dense half are then new memory, and
    joining the inputs of requests takes up to four times as long, in page faults. Blocks of 32 MiB or more are mapped anew as
    before. Each thread keeps an arena of its own, because a server has threads on every core. Settings of a user, in glibc's
    variables of the environment, are left unchanged.
    """
    is_set = any(name in os.environ for name in _VARIABLES)
    return not is_set and _set({_TRIM_THRESHOLD: 64 << 20, _MMAP_THRESHOLD: 32 << 20})


def _set(settings: dict[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return all([mallopt(name, value) for name, value in settings.items()])
