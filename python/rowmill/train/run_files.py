"""Files of a run: what serving and prediction need beside a checkpoint, each named by the sha256 of its content.

They are JSON files in the folder of the rows, written once, before the first checkpoint that names them. The attachment
`rowmill.files` of a checkpoint lists their names, so that a push copies them.

| role | content |
|---|---|
| `config` | the settings of the run |
| `schema` | the columns of the log (click models) |
| `vocabulary` | the known values of each id column, in the order of their ids (click models with a vocabulary) |
| `dropped vocabulary` | those of id columns that the run does not use any more, by name |
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from rowmill.distributed import write_durable
from rowmill.errors import StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILES_ATTACHMENT = "rowmill.files"


class RunFiles:
    """The files of one run.

    Args:
        contents: What can be written as JSON, by role.

    Attributes:
        names: File names by role.
    """

    def __init__(self, contents: Mapping[str, Any]) -> None:
        texts = {role: json.dumps(content).encode() for role, content in contents.items()}
        self.names = {
            role: f"run-{hashlib.sha256(text).hexdigest()}.json" for role, text in texts.items()
        }
        self._unwritten = {self.names[role]: text for role, text in texts.items()}

    def write(self, folder: Path) -> None:
        """Make all files durable in a folder; files that are there already stay as they are."""
        for name in list(self._unwritten):
            if not (folder / name).exists():
                write_durable(folder / name, self._unwritten[name])
            del self._unwritten[name]

    def listed(self) -> bytes:
        """The content of the attachment that names them."""
        return "\n".join(sorted(self.names.values())).encode()


def read_run_file(folder: Path, name: str) -> Any:
    """The content of a file of a run.

    Raises:
        StoreCorrupt: The file is missing, or differs from its name.
    """
    path = folder / name
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise StoreCorrupt(
            f"{path} is missing, but the checkpoint names it: copy the whole folder again"
        ) from None
    if f"run-{hashlib.sha256(text).hexdigest()}.json" != name:
        raise StoreCorrupt(
            f"{path} is damaged: its sha256 differs from its name; restore the file from a copy"
        )
    return json.loads(text)
