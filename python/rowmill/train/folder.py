"""The folder of a run's rows: what may be used, gone on with, or thrown away.

A run throws away only what a run before it has made: store files, of a run's checkpoint or of none, that nobody has
open. Everything else is somebody's, and an error names it.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

import rowmill
from rowmill.config import ConfigError
from rowmill.distributed.checkpoint import take_lock
from rowmill.distributed.manifest import NAME as MANIFEST
from rowmill.distributed.manifest import Manifest
from rowmill.errors import MemoryTooSmall, StoreCorrupt
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config import Config
    from rowmill.store import Store

_RANKS_FILES = re.compile(r"LOCK|CHECKPOINT(\.new)?|state-\d+\.pt(\.new)?|parts-\d+")
_STORE_FILES = re.compile(
    r"LOCK|STORE|RESTORING|MANIFEST(\.new)?|group-\d+\.log|index-\d+\.(snapshot|delta)|attachment-\d+-.*"
)


def make_out(config: Config) -> None:
    """The folder of the report."""
    out = config.train.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"train.out = {str(out)!r} cannot be made a folder ({error.strerror}); give --out another"
        ) from None


def store_folder(config: Config) -> Path:
    """Where the rows of this run go: empty for a new run, as it was for one that goes on."""
    folder = _folder(config)
    _prepare(folder, config, of_ranks=False)
    return folder


def ranks_folder(config: Config, *, first: bool) -> Path:
    """The same for a run of many ranks, of which the first prepares the folder."""
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
        raise ConfigError(f"store {folder} is a file; a store is a folder, give --store another")
    names = [entry.name for entry in folder.iterdir()]
    are_of_ranks = any(name != "LOCK" and _RANKS_FILES.fullmatch(name) for name in names)
    if config.train.resume:
        if names and not are_of_ranks and not any(map(_STORE_FILES.fullmatch, names)):
            raise ConfigError(f"cannot resume: {folder} holds no store, but {min(names)}")
        if names and are_of_ranks != of_ranks:
            raise ConfigError(
                f"cannot resume: {folder} holds the rows of many ranks, start it with torchrun"
                if are_of_ranks
                else f"cannot resume: {folder} holds the rows of one process, start it without torchrun"
            )
        return
    if names and config.store.path is not None:
        raise ConfigError(
            f"store {folder} is not empty: pass --resume to go on with its run, "
            "or give --store another folder"
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
                f"{folder} would be cleared for this run, but cannot be opened to see whose it is ({error}): "
                "remove it yourself, or give --out another folder"
            ) from None


def check_is_of_a_run(store: Store, folder: Path) -> None:
    """Raise if a checkpoint is there that no run has made."""
    if store.table_names() and store.attachment(ATTACHMENT) is None:
        raise ConfigError(
            f"store {folder} has tables, but not of a run of `rowmill train`: give --store another folder"
        )


def _check_names(folder: Path, names: list[str], files: re.Pattern[str]) -> None:
    strange = [name for name in names if not files.fullmatch(name)]
    if strange:
        raise ConfigError(
            f"{folder} would be cleared for this run, but holds {min(strange)}, which is no part of a store: "
            "move it, or give --out another folder"
        )


def _remove(folder: Path, config: Config) -> None:
    # Held open, so that no other run can begin in what is being removed.
    with rowmill.open(folder, memory=config.store.memory) as store:
        check_is_of_a_run(store, folder)
        # In this order, a run that is killed meanwhile leaves its checkpoint, or a store without one.
        for name in ("STORE", "MANIFEST"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _remove_ranks(folder: Path) -> None:
    lock = take_lock(folder)
    try:
        manifest = Manifest.load(folder)
        if manifest is not None and "identity" not in (manifest.position or ()):
            raise ConfigError(
                f"store {folder} has a checkpoint, but not of a run of `rowmill train`: give --store another folder"
            )
        # First, so that a run that is killed meanwhile leaves its checkpoint, or none.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
