"""Turns on a device that programs share."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """As a context manager, one of a number of turns, in the order in which threads ask.

    A semaphore of `threading` has no order: a thread that gives it back and asks again takes it before one that waits has
    woken up.

    Args:
        count: Turns at a time.
    """

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free > 0:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        # Released by the thread that hands its turn over.
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
