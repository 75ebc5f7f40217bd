"""The one file that says what a checkpoint of all ranks is.

First a line `rowmill-checkpoint <format version> <CRC-32 of the rest, 8 hexadecimal digits> <bytes of the rest>`, then
JSON. Whatever it does not name is not part of a checkpoint, and whatever it names is durable.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from rowmill.errors import StoreCorrupt, StoreNewer

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT_FILE = "CHECKPOINT"
_MAGIC = "rowmill-checkpoint"
_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """A checkpoint of all ranks."""

    id: str
    """Drawn for it alone. Every part carries it, so that parts of other checkpoints are told apart."""
    number: int
    """Later ones have larger numbers."""
    generation: int
    """Which spreading of rows over ranks its parts belong to: the number of their folder."""
    epochs: list[int]
    """Of every rank the checkpoint of its store."""
    seed: int
    """Of the initializers."""
    tables: list[str]
    """Names of all tables."""
    position: Any
    """What the caller said of where the data goes on."""
    state_bytes: int
    """Length of the file with everything but rows."""
    state_crc: int
    """Its CRC-32."""

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """The checkpoint in a folder; None if there is none.

        Raises:
            StoreCorrupt: It is damaged.
            StoreNewer: A newer build wrote it.
        """
        path = folder / CHECKPOINT_FILE
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        head, _, rest = content.partition(b"\n")
        words = head.decode("ascii", "replace").split()
        said = [f"{crc32(rest):08x}", str(len(rest))]
        if len(words) != 4 or words[0] != _MAGIC or words[2:] != said or not words[1].isdigit():
            raise StoreCorrupt(
                f"{path} is damaged: its first line does not fit the rest; restore the folder from a copy"
            )
        if int(words[1]) > _VERSION:
            raise StoreNewer(
                f"{path} has format version {words[1]}, this build reads up to {_VERSION}: upgrade rowmill"
            )
        return cls(**json.loads(rest))

    def save(self, folder: Path) -> None:
        """Make this the checkpoint in the folder, in one step: a crash leaves the one before, or this."""
        rest = json.dumps(asdict(self)).encode()
        line = f"{_MAGIC} {_VERSION} {crc32(rest):08x} {len(rest)}\n"
        write_durable(folder / CHECKPOINT_FILE, line.encode() + rest)


def write_durable(path: Path, content: bytes) -> None:
    """Put content in the place of a file's, all of it or none, and on the disk when this returns."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    except OSError:
        # On a full disk even a part of it is in the way of what comes next.
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
