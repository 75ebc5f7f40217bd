"""Uploads of checkpoints to an object store during training."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from rowmill.errors import RowmillError

if TYPE_CHECKING:
    from rich.console import Console

    from rowmill.store.store import Store


class Pusher:
    """Pushes the last checkpoint of a store in a thread of its own, one push at a time.

    A checkpoint made during a push is not pushed by itself: the next call pushes the newest one. After a failed push,
    a message is printed and training continues.
    """

    def __init__(self, store: Store, url: str, *, keep: int, console: Console) -> None:
        self._store = store
        self._url = url
        self._keep = keep
        self._console = console
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start pushing the last checkpoint, unless a push is still running."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._push, name="rowmill-push")
            self._thread.start()

    def finish(self) -> None:
        """Wait for a running push, then push the last checkpoint; raises if that fails."""
        self.wait()
        self._store.push(self._url, keep=self._keep)

    def wait(self) -> None:
        """Wait for a running push."""
        if self._thread is not None:
            self._thread.join()

    def _push(self) -> None:
        try:
            self._store.push(self._url, keep=self._keep)
        except RowmillError as error:
            self._console.print(
                f"Warning: the checkpoint was not pushed; training continues: {error}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
