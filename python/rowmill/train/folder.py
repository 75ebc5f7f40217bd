"""The folders of a run: checks whether a run may use, resume, replace or clear them.

A new run never overwrites a checkpoint. It clears only the files of a store without a checkpoint that no process has
open. In every other case it raises an error that names the folder, what is there, and what to do.

The rows are in `OUT/store`. With `--store FOLDER`, `OUT/store` is a link to that folder, so that `OUT` alone names the run.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import rowmill
from rowmill.config.setting import ConfigError
from rowmill.distributed import take_lock
from rowmill.errors import MemoryTooSmall, StoreCorrupt
from rowmill.train.found_run import (
    FoundRun,
    check_names,
    has_checkpoint,
    is_of_ranks,
    is_store,
    of_no_run,
)
from rowmill.train.replacement import Replacement, place_of_old, rows_in
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config
    from rowmill.store.store import Store


_LOCK = "LOCK"


def check_folders(config: Config) -> None:
    """Raise `ConfigError` if the run may not use its folders. Changes nothing on disk."""
    out, given = config.train.out, config.store.path
    Replacement.check(config)
    if given is not None and not given.exists() and Replacement.found(out) is None:
        kept = place_of_old(given)
        if has_checkpoint(kept):
            raise ConfigError(
                f"--replace of a run with another --out moved the old rows of {given} to {kept}: pass that --out again, or "
                f"rename {kept}"
            )
    if config.train.resume:
        rows = out / "store"
        # A folder with a checkpoint may be a copy that `rowmill restore` has made.
        if given is not None and has_checkpoint(rows) and not has_checkpoint(given):
            raise ConfigError(
                f"cannot resume: the run in {out} has its rows in {rows.resolve()}, and {given} has no checkpoint: drop "
                "--store, or pass another --out"
            )
    elif not config.train.replace:
        for rows in rows_in(out):
            _check_is_new(rows, out, "--out")
        if given is not None:
            _check_is_new(given, given, "--store")


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
    return _prepared(config, of_ranks=False)


def ranks_folder(config: Config, *, first: bool) -> Path:
    """As `store_folder`, for a run of many ranks; the first rank prepares the folder."""
    if first:
        make_out(config)
        return _prepared(config, of_ranks=True)
    return _folder(config)


def _folder(config: Config) -> Path:
    return config.train.out / "store" if config.store.path is None else config.store.path


def _prepared(config: Config, *, of_ranks: bool) -> Path:
    folder, link = _folder(config), config.train.out / "store"
    if config.train.replace:
        Replacement.begin(config)
    if folder == link and link.is_symlink() and not config.train.resume:
        # The rows to which it points are those of an earlier run, which made no checkpoint.
        link.unlink()
    _prepare(folder, config, of_ranks=of_ranks)
    if not _is_same(folder, link):
        _link(folder, link, config)
    return folder


def _prepare(folder: Path, config: Config, *, of_ranks: bool) -> None:
    if not folder.exists():
        if folder.is_symlink():
            raise ConfigError(
                f"{folder} points to {folder.readlink()}, which does not exist: put that folder back, or name the "
                "folder of the rows with --store"
            )
        return
    if not folder.is_dir():
        raise ConfigError(
            f"store {folder} is a file, but a store is a folder: pass another --store"
        )
    names = [entry.name for entry in folder.iterdir()]
    are_of_ranks = is_of_ranks(names)
    if config.train.resume:
        if names == [_LOCK]:
            # A start of ranks that failed early has left nothing else.
            return
        if names and not are_of_ranks and not is_store(names):
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
    if names and folder == config.store.path and not config.train.replace:
        raise ConfigError(
            f"store {folder} is not empty: pass --resume to continue its run, or pass another --store"
        )
    if names:
        _clear(folder, config)


def _link(folder: Path, link: Path, config: Config) -> None:
    """Make `OUT/store` a link to the folder of `--store`."""
    if link.is_dir() and not link.is_symlink():
        if config.train.resume:
            return
        # Rows of an earlier run without a checkpoint, which had no --store.
        _clear(link, config)
    new = link.with_name("store.new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder.absolute())
    new.replace(link)


def _clear(folder: Path, config: Config) -> None:
    """Remove a folder of rows without a checkpoint, unless a process has it open."""
    if not any(folder.iterdir()):
        folder.rmdir()
        return
    check_names(folder, "clear")
    try:
        if is_of_ranks([entry.name for entry in folder.iterdir()]):
            lock = take_lock(folder)
            try:
                _remove(folder, config)
            finally:
                lock.release()
        else:
            # The open store holds its lock: no other run can start here between the check and the removal.
            with closing(rowmill.open(folder, memory=config.store.memory)):
                _remove(folder, config)
    except (StoreCorrupt, MemoryTooSmall) as error:
        raise ConfigError(
            f"this run would delete the rows in {folder}, but cannot open them to check for a checkpoint ({error}): "
            "remove the folder, or pass another --out"
        ) from None


def _remove(folder: Path, config: Config) -> None:
    _check_is_new(folder, config.train.out, "--out")
    shutil.rmtree(folder)


def check_is_of_a_run(store: Store, folder: Path) -> None:
    """Raise `ConfigError` if the store has tables that `rowmill train` did not write."""
    if store.table_names() and store.attachment(ATTACHMENT) is None:
        raise of_no_run(folder, "--store")


def _check_is_new(rows: Path, moved: Path, flag: str) -> None:
    if (found := FoundRun.look(rows, flag)) is not None:
        raise ConfigError(
            f"{rows} has the checkpoint of a run ({found}): pass --resume to continue it, another {flag} for a new run, "
            f"--continue {moved if flag == '--out' else 'OUT'} to train it on new data, or --replace for a new run in its "
            f"place; --replace keeps the old one as {moved}.replaced until the new one has its first checkpoint"
        )


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
