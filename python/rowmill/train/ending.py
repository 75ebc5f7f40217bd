"""`Ending`: the end of training on files, which a signal asks for."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import FrameType

    from rowmill.distributed import Ranks

_T = TypeVar("_T")


class Ending:
    """The end of a run of one process."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    def ask(self) -> None:
        """Ask for the end."""
        self._asked.set()

    @property
    def agreed(self) -> bool:
        """Whether to end now."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> None:
        """Wait this long, or until the end is asked for."""
        self._asked.wait(seconds)

    def first(self, work: Callable[[], _T]) -> _T:
        """The result of `work`; on many ranks that of rank 0, where alone it is called."""
        return work()


class EndingOfRanks(Ending):
    """The end of a run of many ranks: once one rank asks for it, all end after the same step.

    In a step, the sum of the loss over all ranks says so, without a further message.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks
        self._agreed = False

    def ask(self) -> None:
        """Ask for the end on all ranks."""
        super().ask()
        self._ranks.ask_to_stop()

    @property
    def agreed(self) -> bool:
        """Whether to end now; equal on all ranks."""
        return self._agreed or self._ranks.stop_asked

    def first(self, work: Callable[[], _T]) -> _T:
        """The result of `work` on rank 0; raises on every rank if it raises there. A collective, which also agrees on the end."""

        def done() -> tuple[list[_T], dict[str, object]]:
            return ([work()] if self._ranks.rank == 0 else []), {}

        found = self._ranks.agree(done, "the files")
        said = self._ranks.gather((found, self._asked.is_set()))
        self._agreed = self._agreed or any(asked for _, asked in said)
        return said[0][0][0]


@contextmanager
def ended_by_signals(ending: Ending) -> Generator[None]:
    """SIGINT and SIGTERM ask for the end; a second signal has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: FrameType | None) -> None:
        ending.ask()
        for of, handler in usual.items():
            signal.signal(of, handler)

    for number in usual:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
