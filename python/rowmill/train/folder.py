"""The folder of a run's rows: checks whether a run may use, resume or clear it.

A new run never overwrites a checkpoint. It clears only the files of a store without a checkpoint that no process has
open. In every other case it raises an error that names the folder and the file.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, cast

import rowmill
from rowmill import _core
from rowmill.config.setting import ConfigError
from rowmill.distributed import CHECKPOINT_FILE, Manifest, take_lock
from rowmill.errors import MemoryTooSmall, StoreCorrupt
from rowmill.train.state import ATTACHMENT, described_in, progress_of

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config
    from rowmill.store.store import Store

_RUN_FILES = r"|run-[0-9a-f]{64}\.json(\.new)?"
_RANKS_ONLY = r"CHECKPOINT(\.new)?|state-\d+\.pt(\.new)?|parts-\d+"
_RANKS_FILES = re.compile(f"LOCK|{_RANKS_ONLY}{_RUN_FILES}")
_STORE_FILES = re.compile(
    r"LOCK|STORE|RESTORING|MANIFEST(\.new)?|group-\d+\.log|index-\d+\.(snapshot|delta)|attachment-\d+-.*"
    + _RUN_FILES
)


def check_is_new(config: Config) -> None:
    """Raise `ConfigError` if a new run would use a folder that has a checkpoint. Changes nothing on disk."""
    if config.train.resume:
        return
    _check_is_new(config.train.out / "store", "--out")
    if config.store.path is not None:
        _check_is_new(config.store.path, "--store")


def make_out(config: Config) -> None:
    """Create the folder of the report."""
    out = config.train.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"train.out = {str(out)!r} cannot be created as a folder ({error.strerror}); pass another --out"
        ) from None


def store_folder(config: Config) -> Path:
    """The folder for the rows of this run: cleared for a new run, unchanged for a resumed one."""
    folder = _folder(config)
    _prepare(folder, config, of_ranks=False)
    return folder


def ranks_folder(config: Config, *, first: bool) -> Path:
    """As `store_folder`, for a run of many ranks; the first rank prepares the folder."""
    folder = _folder(config)
    if first:
        make_out(config)
        _prepare(folder, config, of_ranks=True)
    return folder


def _folder(config: Config) -> Path:
    return config.train.out / "store" if config.store.path is None else config.store.path


def _prepare(folder: Path, config: Config, *, of_ranks: bool) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(
            f"store {folder} is a file, but a store is a folder: pass another --store"
        )
    names = [entry.name for entry in folder.iterdir()]
    are_of_ranks = any(re.fullmatch(_RANKS_ONLY, name) for name in names)
    if config.train.resume:
        if names and not are_of_ranks and not any(map(_STORE_FILES.fullmatch, names)):
            raise ConfigError(
                f"cannot resume: {folder} is not a store (it holds {min(names)}); check --out and --store"
            )
        if names and are_of_ranks != of_ranks:
            raise ConfigError(
                f"cannot resume: {folder} was written by many ranks; start this command with torchrun"
                if are_of_ranks
                else f"cannot resume: {folder} was written by one process; start this command without torchrun"
            )
        return
    if names and config.store.path is not None:
        raise ConfigError(
            f"store {folder} is not empty: pass --resume to continue its run, or pass another --store"
        )
    if names:
        _check_names(folder, names, _RANKS_FILES if are_of_ranks else _STORE_FILES)
        try:
            if are_of_ranks:
                _remove_ranks(folder)
            else:
                _remove(folder, config)
        except (StoreCorrupt, MemoryTooSmall) as error:
            raise ConfigError(
                f"this run would clear {folder}, but cannot open it to check for a checkpoint ({error}): "
                "remove the folder, or pass another --out"
            ) from None


def check_is_of_a_run(store: Store, folder: Path) -> None:
    """Raise `ConfigError` if the store has tables that `rowmill train` did not write."""
    if store.table_names() and store.attachment(ATTACHMENT) is None:
        raise _of_no_run(folder, "--store")


def _check_is_new(folder: Path, flag: str) -> None:
    try:
        if (folder / CHECKPOINT_FILE).exists():
            manifest = Manifest.load(folder)
            position = None if manifest is None else manifest.position
            known = isinstance(position, dict) and "identity" in position
            described = cast("dict[str, str]", position) if known else None
        elif (folder / "MANIFEST").exists():
            packed = _core.Changes.open(str(folder), 0).attachment(ATTACHMENT)
            described = None if packed is None else described_in(packed)
        else:
            return
    except StoreCorrupt as error:
        raise ConfigError(
            f"{folder} has a checkpoint that cannot be read ({error}): restore the folder from a copy, remove it, or "
            f"pass another {flag}"
        ) from None
    if described is None:
        raise _of_no_run(folder, flag)
    raise ConfigError(
        f"{folder} has the checkpoint of a run at {progress_of(described)}, which a new run would overwrite: pass "
        f"--resume to continue from it, or pass another {flag}"
    )


def _of_no_run(folder: Path, flag: str) -> ConfigError:
    return ConfigError(
        f"store {folder} has tables that `rowmill train` did not write: pass another {flag}"
    )


def _check_names(folder: Path, names: list[str], files: re.Pattern[str]) -> None:
    strange = [name for name in names if not files.fullmatch(name)]
    if strange:
        raise ConfigError(
            f"this run would clear {folder}, but it holds {min(strange)}, which is not a file of a store: "
            "move that file, or pass another --out"
        )


def _remove(folder: Path, config: Config) -> None:
    # The open store holds its lock: no other run can start here between the check and the removal.
    with rowmill.open(folder, memory=config.store.memory):
        _check_is_new(folder, "--out")
        shutil.rmtree(folder)


def _remove_ranks(folder: Path) -> None:
    lock = take_lock(folder)
    try:
        _check_is_new(folder, "--out")
        shutil.rmtree(folder)
    finally:
        lock.release()
