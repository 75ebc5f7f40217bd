"""`Arrivals`: the files of a folder in the order of their names, as they arrive.

A file arrives whole, by a rename. Names that begin with a dot or an underscore are not looked at, so a file may be written under
such a name. A file that was taken may be removed, but not changed; and no name may arrive that sorts before the last one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rowmill.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rowmill.train.ending import Ending

_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True)
class TakenFile:
    """A file as it was when it was taken: its name, its bytes, and when it was changed, in ns since 1970."""

    name: str
    bytes: int
    changed_ns: int


class Arrivals:
    """The files of a folder.

    Args:
        folder: The folder.
        takes: Whether to take a file of this name.
        taken: Files that were taken before, in the order of their names.
        until: Take no file whose name sorts after this one, and end when such a file, or one of this name, is there.
    """

    def __init__(
        self,
        folder: Path,
        takes: Callable[[str], bool],
        taken: Iterable[TakenFile],
        until: str | None,
    ) -> None:
        self.folder = folder
        self._takes = takes
        self._taken = {file.name: file for file in taken}
        self._until = until

    def next(self, ending: Ending, idle: Callable[[], None]) -> TakenFile | None:
        """Wait for the next file, and take it; None at the end. On many ranks a collective: rank 0 looks.

        Args:
            ending: Ends the wait.
            idle: Called once before a wait.

        Raises:
            DataError: A taken file has changed, or a file has arrived that sorts before the last one.
        """
        waits = False
        while True:
            file, is_last = ending.first(self._next)
            if is_last or ending.agreed:
                return None
            if file is not None:
                self._taken[file.name] = file
                return file
            if not waits:
                idle()
                waits = True
            ending.wait(_LOOK_AGAIN_S)

    def _next(self) -> tuple[TakenFile | None, bool]:
        """The next file, if it is there; and whether to wait for no further file."""
        file = self._first(self._look())
        if file is None:
            return None, self._until is not None and self._last >= self._until
        if self._until is not None and file.name > self._until:
            return None, True
        return file, False

    def check(self, file: TakenFile) -> None:
        """Raise `DataError` if a taken file is not as it was."""
        now = self._look().get(file.name)
        if now is None:
            raise DataError(
                f"{self.folder / file.name} is gone, but not all of its rows were trained on: put it back"
            )

    @property
    def _last(self) -> str:
        return max(self._taken, default="")

    def _look(self) -> dict[str, TakenFile]:
        found: dict[str, TakenFile] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")) or not self._takes(entry.name):
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:  # Removed since the listing.
                    continue
                found[entry.name] = TakenFile(entry.name, status.st_size, status.st_mtime_ns)
        for name, file in found.items():
            taken = self._taken.get(name)
            if taken is not None and taken != file:
                raise DataError(
                    f"{self.folder / name} has changed since it was trained on ({taken.bytes:,} bytes then, {file.bytes:,} "
                    "now): put the old file back, or remove it, and give new rows a name that sorts after "
                    f"{self._last}"
                )
        return found

    def _first(self, found: dict[str, TakenFile]) -> TakenFile | None:
        new = sorted(found.keys() - self._taken.keys())
        if not new:
            return None
        if new[0] < self._last:
            raise DataError(
                f"{self.folder / new[0]} sorts before {self._last}, which was trained on already: rename it so that it sorts "
                "after all files that were, or move it away"
            )
        return found[new[0]]
