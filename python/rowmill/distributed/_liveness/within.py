"""A time limit for calls that may never return."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """Run a call for at most `seconds`; return its result or raise its error.

    Raises:
        TimeoutError: The call did not end in time. It continues in a daemon thread.
    """
    outcome: Future[_T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="rowmill-within", daemon=True).start()
    return outcome.result(seconds)
