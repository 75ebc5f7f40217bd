"""Calls that nothing else bounds, and that may never return."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """What a call returns or raises.

    Raises:
        TimeoutError: It did neither in time; it goes on in a thread that ends with the process.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="rowmill-within", daemon=True).start()
    return outcome.result(seconds)
