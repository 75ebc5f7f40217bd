"""Uploads of checkpoints to an object store during training, of one process or of many ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from rowmill.errors import RowmillError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from rowmill.distributed import PushOfRanks, Ranks
    from rowmill.store.store import Store


class Pusher(ABC):
    """Pushes the last checkpoint in a thread of its own, one push at a time.

    A checkpoint made during a push is not pushed by itself: the next call pushes the newest one. After a failed push,
    a message is printed and training continues.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start pushing the last checkpoint, unless a push is still running."""
        if not self._is_running():
            push = self._last()
            self._thread = Thread(target=self._try, args=(push,), name="rowmill-push")
            self._thread.start()

    def finish(self) -> None:
        """Wait for a running push, then push the last checkpoint; raises if that fails."""
        self.wait()
        self._last()()

    def wait(self) -> None:
        """Wait for a running push."""
        if self._thread is not None:
            self._thread.join()

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @abstractmethod
    def _last(self) -> Callable[[], object]:
        """A function that pushes the last checkpoint."""

    def _try(self, push: Callable[[], object]) -> None:
        try:
            push()
        except RowmillError as error:
            self._console.print(
                f"Warning: the checkpoint was not pushed; training continues: {error}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


class StorePusher(Pusher):
    """Pushes the checkpoints of a store."""

    def __init__(self, store: Store, url: str, *, keep: int, console: Console) -> None:
        super().__init__(console)
        self._push = partial(store.push, url, keep=keep)

    def _last(self) -> Callable[[], object]:
        return self._push


class PusherOfRanks(Pusher):
    """Pushes the checkpoints of all ranks; `begin` and `finish` are collectives.

    Args:
        ranks: All ranks.
        last: Returns the push of the last checkpoint.
        store: The store of this rank.
        console: For messages.
    """

    def __init__(
        self, ranks: Ranks, last: Callable[[], PushOfRanks], store: Store, console: Console
    ) -> None:
        super().__init__(console)
        self._ranks = ranks
        # The thread's messages are apart from those of training.
        self._beside = ranks.beside()
        self._of_last = last
        self._store = store

    def _is_running(self) -> bool:
        return any(self._ranks.gather(super()._is_running()))

    def _last(self) -> Callable[[], object]:
        return partial(self._of_last().run, self._beside, self._store)
