"""Handles Ctrl-C while a command imports its modules."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def importing() -> Generator[None]:
    """While modules load, let Ctrl-C end the process at once: some modules catch KeyboardInterrupt and fail later."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not handled or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        print("rowmill: interrupted before any change", file=sys.stderr, flush=True)
        os._exit(130)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
