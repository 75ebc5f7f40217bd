"""How long idle threads of OpenMP wait for work before they sleep."""

from __future__ import annotations

import os

_SPINS = "10000"
_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}


def spin_briefly() -> None:
    """Let idle threads of torch spin for less than a millisecond before they sleep, unless the environment says otherwise.

    Call this before torch is imported: GNU OpenMP, which torch's wheels contain, reads the setting when it is loaded. By
    default it lets idle threads spin 30 times as long, on the cores that threads of the store need. With 2 threads on 2
    cores, a shorter wait made steps 1.1 to 1.2 times as fast, out of core and in memory.
    """
    if not _SETTINGS & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = _SPINS
