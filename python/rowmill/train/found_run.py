"""`FoundRun`: the run whose checkpoint is already in a folder of rows, and the files that such a folder may hold."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, cast

from rowmill import _core
from rowmill.config.setting import ConfigError
from rowmill.distributed import CHECKPOINT_FILE, Manifest
from rowmill.errors import StoreCorrupt
from rowmill.size import format_size
from rowmill.train.run_files import files_of, read_run_file
from rowmill.train.state import ATTACHMENT, RunState, described_in, progress_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rowmill.config.config import Config

_RUN_FILES = r"|run-[0-9a-f]{64}\.(json|txt)(\.new)?"
_RANKS_ONLY = r"CHECKPOINT(\.new)?|version-\d+\.json(\.new)?|state-\d+\.pt(\.new)?|parts-\d+"
_RANKS_FILES = re.compile(f"LOCK|{_RANKS_ONLY}{_RUN_FILES}")
_STORE_FILES = re.compile(
    r"LOCK|STORE|RESTORING|MANIFEST(\.new)?|group-\d+\.log|index-\d+\.(snapshot|delta|moves|rows)"
    r"|version-\d+\.manifest|attachment-\d+-.*|feed-\d+" + _RUN_FILES
)
_BLOCK = 512
"""Unit of `st_blocks`."""


@dataclass(frozen=True)
class FoundRun:
    """The last checkpoint of a run of `rowmill train`.

    Attributes:
        task: Its task: "ctr", "kge" or "gnn".
        progress: Its position as text.
        saved: When the checkpoint was made.
        bytes: Bytes on disk of the folder of rows.
    """

    task: str
    progress: str
    saved: datetime
    bytes: int

    @classmethod
    def look(cls, rows: Path, flag: str) -> Self | None:
        """The run whose checkpoint is in a folder of rows; None if the folder has no checkpoint.

        Args:
            rows: The folder.
            flag: The flag that named it, for messages.

        Raises:
            ConfigError: The checkpoint cannot be read, or is not of a run.
        """
        if not has_checkpoint(rows):
            return None
        try:
            described = described_run(rows)
        except StoreCorrupt as error:
            raise ConfigError(
                f"{rows} has a checkpoint that cannot be read ({error}): restore the folder from a copy, remove it, or "
                f"pass another {flag}"
            ) from None
        if described is None:
            raise of_no_run(rows, flag)
        manifest = rows / CHECKPOINT_FILE
        named = manifest if manifest.exists() else rows / "MANIFEST"
        return cls(
            # Checkpoints older than the setting are of click models.
            task=json.loads(described["identity"]).get("train.task", "ctr"),
            progress=progress_of(described),
            saved=datetime.fromtimestamp(named.stat().st_mtime, UTC),
            bytes=sum(file.lstat().st_blocks * _BLOCK for file in rows.rglob("*")),
        )

    def __str__(self) -> str:
        return f"task {self.task}, {self.progress}, saved {self.saved:%Y-%m-%d %H:%M:%S} UTC, {format_size(self.bytes)}"


def has_checkpoint(rows: Path) -> bool:
    """Whether a folder of rows has a checkpoint, of one process or of many ranks."""
    return (rows / CHECKPOINT_FILE).exists() or (rows / "MANIFEST").exists()


def described_run(rows: Path) -> Mapping[str, str] | None:
    """The result of `Run.described` at the last checkpoint in a folder of rows; None if it is of no run.

    Raises:
        StoreCorrupt: The checkpoint cannot be read.
    """
    return _of_ranks(rows) if (rows / CHECKPOINT_FILE).exists() else _of_one(rows)


def rows_of(config: Config) -> Path:
    """The folder of the rows of a run with these settings."""
    return config.train.out / "store" if config.store.path is None else config.store.path


@dataclass(frozen=True)
class Saved:
    """What the last checkpoint says of a run.

    Attributes:
        identity: Its identity.
        state: Its state.
        rows: The folder of its rows.
        files: Names of its files by role.
    """

    identity: dict[str, Any]
    state: RunState
    rows: Path
    files: dict[str, str]

    def file(self, role: str) -> Any:
        """The content of a file of the run, of a text file its path; None if the run has none of this role."""
        return read_run_file(self.rows, self.files[role]) if role in self.files else None


def saved_run(config: Config) -> Saved | None:
    """What the last checkpoint says of the run that is resumed or continued; None if there is none."""
    rows = rows_of(config)
    described = described_run(rows) if config.train.resume and has_checkpoint(rows) else None
    if described is None:
        return None
    return Saved(
        json.loads(described["identity"]),
        RunState.from_json(described["state"]),
        rows,
        files_of(described),
    )


def saved_sizes(rows: Path) -> dict[str, int | None]:
    """The number of ids of each table at the last checkpoint, by name; None: any 64-bit id."""
    manifest, at = Manifest.load(rows), None
    if manifest is not None:
        rows, at = rows / f"parts-{manifest.generation}" / "0", manifest.epochs[0]
    return {
        table["name"]: table["dense_rows"]
        for table in _core.Changes.open(str(rows), 0, at).tables()
    }


def is_of_ranks(names: list[str]) -> bool:
    """Whether a folder of rows with files of these names was written by many ranks."""
    return any(re.fullmatch(_RANKS_ONLY, name) for name in names)


def is_store(names: list[str]) -> bool:
    """Whether some of these names are of files of a store."""
    return any(map(_STORE_FILES.fullmatch, names))


def check_names(folder: Path, what: str) -> None:
    """Raise `ConfigError` if a folder of rows holds anything but files of a store.

    Args:
        folder: The folder.
        what: What the caller would do with the folder, for the message.
    """
    names = [entry.name for entry in folder.iterdir()]
    files = _RANKS_FILES if is_of_ranks(names) else _STORE_FILES
    if strange := [name for name in names if not files.fullmatch(name)]:
        raise ConfigError(
            f"this run would {what} {folder}, but it holds {min(strange)}, which is not a file of a store: "
            "move that file, or pass another --out"
        )


def of_no_run(folder: Path, flag: str) -> ConfigError:
    """The error for a store that `rowmill train` did not write."""
    return ConfigError(
        f"store {folder} has tables that `rowmill train` did not write: pass another {flag}"
    )


def _of_one(folder: Path) -> Mapping[str, str] | None:
    packed = _core.Changes.open(str(folder), 0).attachment(ATTACHMENT)
    return None if packed is None else described_in(packed)


def _of_ranks(folder: Path) -> Mapping[str, str] | None:
    manifest = Manifest.load(folder)
    position = None if manifest is None else manifest.position
    known = isinstance(position, dict) and "identity" in position
    return cast("dict[str, str]", position) if known else None
