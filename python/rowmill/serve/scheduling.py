"""Scheduling policy and priorities of the threads of a worker."""

from __future__ import annotations

import os
from contextlib import suppress

_NICER = 5
"""Beside a thread without it, a thread gets a quarter of the time of a core."""


def keep_batches_running() -> None:
    """Let a thread that wakes up wait for a core instead of taking one from a batch (policy SCHED_BATCH).

    Requests then take less CPU time (decision 0021). Holds for this thread and those that it starts. A policy that was chosen for
    the process stays.
    """
    with suppress(OSError):  # Where a sandbox forbids it, the worker runs without.
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def yield_to_other_threads() -> None:
    """Give this thread a lower priority, so that a further batch takes the time that other threads leave."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
