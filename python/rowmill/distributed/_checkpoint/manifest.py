"""The manifest: the file that defines a checkpoint of all ranks.

Its first line is `rowmill-checkpoint <format version> <CRC-32 of the rest, 8 hexadecimal digits> <bytes of the rest>`; the
rest is JSON. A checkpoint consists of exactly the files that the manifest lists, and all of them are durable.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from rowmill.errors import StoreCorrupt, StoreNewer

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT_FILE = "CHECKPOINT"
_MAGIC = "rowmill-checkpoint"
_VERSION = 2
"""Version 2 adds `placements`. Without them a manifest has version 1, which older builds read."""


@dataclass(frozen=True)
class Manifest:
    """A checkpoint of all ranks."""

    id: str
    """Unique id. Every part stores it, so that parts of other checkpoints are recognised."""
    number: int
    """Number of the checkpoint; it increases."""
    generation: int
    """Number of the folder of its parts; it increases whenever the number of ranks changes."""
    epochs: list[int]
    """Per rank, the epoch of its store."""
    seed: int
    """Seed of the initializers."""
    tables: list[str]
    """Names of all tables."""
    position: Any
    """The caller's position in the data."""
    state_bytes: int
    """Length of the state file, which holds everything but rows."""
    state_crc: int
    """CRC-32 of the state file."""
    placements: dict[str, str] = field(default_factory=dict[str, str])
    """Placements of tables by name, except "rows"."""

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the manifest of a folder; None if there is none.

        Raises:
            StoreCorrupt: The manifest is damaged.
            StoreNewer: A newer version of rowmill wrote it.
        """
        return cls.read(folder / CHECKPOINT_FILE)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a manifest; None if there is no such file. Raises as `load`."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, where: str) -> Self:
        """The manifest that `sealed` returned; `where` it was read is named in errors. Raises as `load`."""
        head, _, rest = content.partition(b"\n")
        words = head.decode("ascii", "replace").split()
        said = [f"{crc32(rest):08x}", str(len(rest))]
        if len(words) != 4 or words[0] != _MAGIC or words[2:] != said or not words[1].isdigit():
            raise StoreCorrupt(
                f"{where} is damaged: its first line does not match the rest; restore the folder from a copy"
            )
        if int(words[1]) > _VERSION:
            raise StoreNewer(
                f"{where} has format version {words[1]}, this build reads up to {_VERSION}: upgrade rowmill"
            )
        return cls(**json.loads(rest))

    def save(self, folder: Path) -> None:
        """Make this the checkpoint in the folder, atomically: after a crash it is the previous one or this."""
        self.write(folder / CHECKPOINT_FILE)

    def write(self, path: Path) -> None:
        """Write this durably and atomically as a file."""
        write_durable(path, self.sealed())

    def sealed(self) -> bytes:
        """The content of the file."""
        content = asdict(self)
        if not self.placements:
            del content["placements"]
        rest = json.dumps(content).encode()
        version = _VERSION if self.placements else 1
        line = f"{_MAGIC} {version} {crc32(rest):08x} {len(rest)}\n"
        return line.encode() + rest


def write_durable(path: Path, content: bytes) -> None:
    """Replace a file's content atomically; it is durable when this returns."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
    except OSError:
        # On a full disk even a partial file takes space.
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
