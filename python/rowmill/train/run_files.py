"""Files of a run: what serving and prediction need beside a checkpoint, each named by the sha256 of its content.

They are JSON or text files in the folder of the rows, written once, before the first checkpoint that names them. The attachment
`rowmill.files` of a checkpoint lists their names, so that a push copies them.

| role | content |
|---|---|
| `config` | the settings of the run |
| `schema` | the columns of the log (click models) |
| `vocabulary` | the known values of each id column, in the order of their ids (click models with a vocabulary) |
| `entities`, `relations` | names by number, one a line: text, since a graph may have millions (knowledge graphs) |
| `dropped vocabulary` | those of id columns that the run does not use any more, by name |
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.distributed import write_durable
from rowmill.errors import StoreCorrupt
from rowmill.files import sync_folder, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILES_ATTACHMENT = "rowmill.files"
_CHUNK_BYTES = 1 << 20


class RunFiles:
    """The files of one run.

    Args:
        contents: By role, what can be written as JSON, or the path of a text file. The text file is not read before `names` or
            `write` is used, and must then stay as it is until `write` has returned.
    """

    def __init__(self, contents: Mapping[str, Any]) -> None:
        self._unwritten: dict[str, bytes | Path] = {
            role: content if isinstance(content, Path) else json.dumps(content).encode()
            for role, content in contents.items()
        }

    @cached_property
    def names(self) -> dict[str, str]:
        """File names by role. The first use reads the text files."""
        return {
            role: f"run-{_sha256(content)}.txt"
            if isinstance(content, Path)
            else f"run-{hashlib.sha256(content).hexdigest()}.json"
            for role, content in self._unwritten.items()
        }

    def write(self, folder: Path) -> None:
        """Make all files durable in a folder; files that are there already stay as they are."""
        for role, name in self.names.items():
            content = self._unwritten.get(role)
            if content is not None and not (folder / name).exists():
                if isinstance(content, Path):
                    copy_run_file(content, folder / name)
                else:
                    write_durable(folder / name, content)
            self._unwritten.pop(role, None)

    def listed(self) -> bytes:
        """The content of the attachment that names them."""
        return listed(self.names.values())


def listed(names: Iterable[str]) -> bytes:
    """The content of the attachment that names these files of a run."""
    return "\n".join(sorted(names)).encode()


def files_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Names of the files of a described run by role; empty for runs from before there were any."""
    return json.loads(described.get("files", "{}"))


def read_run_file(folder: Path, name: str) -> Any:
    """The content of a file of a run; of a text file its path, after its content was checked.

    Raises:
        StoreCorrupt: The file is missing, or differs from its name.
    """
    path = folder / name
    try:
        if path.suffix == ".txt":
            content, found = path, _sha256(path)
        else:
            content = path.read_bytes()
            found = hashlib.sha256(content).hexdigest()
    except FileNotFoundError:
        raise StoreCorrupt(
            f"{path} is missing, but the checkpoint names it: copy the whole folder again"
        ) from None
    if found != path.stem.removeprefix("run-"):
        raise StoreCorrupt(
            f"{path} is damaged: its sha256 differs from its name; restore the file from a copy"
        )
    return content if isinstance(content, Path) else json.loads(content)


def copy_run_file(source: Path, target: Path) -> None:
    """Copy a file of a run under its name; it is durable when this returns."""
    new = target.with_name(f"{target.name}.new")
    try:
        with source.open("rb") as read, writing(new), new.open("wb") as file:
            while chunk := read.read(_CHUNK_BYTES):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        new.rename(target)
    except OSError:
        # On a full disk even a partial file takes space.
        new.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
