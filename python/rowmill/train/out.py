"""The name of a run's folder. Without `--out` it is `out/<task>-<time>`, and the link `out/latest` points to the latest one."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill._extras import extra
from rowmill.config.sections import TrainConfig
from rowmill.config.setting import ConfigError
from rowmill.distributed import take_lock
from rowmill.distributed.torchrun import Restarts
from rowmill.errors import StoreLocked
from rowmill.train.folder import check_folders
from rowmill.train.found_run import has_checkpoint, is_of_ranks
from rowmill.train.replacement import Replacement, rows_in

with extra("train"):
    from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Generator

    from rowmill.config.config import Config
    from rowmill.distributed import Ranks

LATEST = TrainConfig.out
_BEGUN = "folder of the run"


class RunFolder:
    """The folder of a run.

    Attributes:
        config: The settings, with the folder as `train.out`.
    """

    def __init__(self, config: Config, *, link: bool = False, made: bool = False) -> None:
        self.config = config
        self._link = link
        self._made = made
        self._begun = False
        # Folders that existed, and whether each was empty.
        self._before = {path: _is_empty(path) for path in self._rows() if os.path.lexists(path)}
        self._had_out = os.path.lexists(config.train.out)
        replaced = Replacement.found(config.train.out) if config.train.replace else None
        self._waits = replaced is not None and replaced.keeps_old

    def begin(self, console: Console) -> None:
        """The run has opened its data and rows, and begins: `out/latest` points to its folder if it has no `--out`."""
        self._begun = True
        if self._link:
            out = self.config.train.out
            _point_latest(out)
            console.print(f"The folder of this run is {out}", highlight=False, soft_wrap=True)

    def leave(self) -> None:
        """If the run has not begun, everything is as before the command, but for data that it has generated."""
        if self._begun:
            return
        out = self.config.train.out
        if self._made:
            shutil.rmtree(out, ignore_errors=True)
        elif self.config.train.replace and not self._waits:
            Replacement.undo(out)
        elif not self.config.train.replace:
            for rows in self._rows():
                if self._before.get(rows, True) and os.path.lexists(rows):
                    _remove_rows(rows, keep_folder=rows in self._before)
            # Rows that are still there are of another run, which has just begun.
            if not self._had_out and not any(map(os.path.lexists, rows_in(out))):
                with suppress(OSError):
                    _empty(out, self.config.data.path)
                    out.rmdir()

    def _rows(self) -> list[Path]:
        """The folders of rows: a link to one before that one."""
        given = self.config.store.path
        return [*rows_in(self.config.train.out), *([] if given is None else [given])]


@contextmanager
def run_folder(config: Config) -> Generator[RunFolder]:
    """The folder of a run, checked by `check_folders`.

    Without `--out`, a resumed run has the folder to which `out/latest` points, and a new one gets a new folder.
    """
    if config.train.out != LATEST:
        folder = RunFolder(config)
    elif config.train.replace:
        raise ConfigError(
            "train.replace needs the folder of the run to replace, --out: without --out, each run has a folder of its own"
        )
    elif config.train.resume and os.path.lexists(LATEST):
        folder = RunFolder(_with_out(config, _latest()))
    else:
        named = _with_out(config, _new_folder(config.train.task))
        folder = RunFolder(named, link=True, made=True)
    try:
        check_folders(folder.config)
        yield folder
    finally:
        folder.leave()


@contextmanager
def ranked_folder(config: Config, ranks: Ranks) -> Generator[RunFolder]:
    """As `run_folder`, for the settings of a rank: rank 0 names the folder for all ranks.

    Ranks that torchrun starts again resume the run that their earlier start has begun. A collective.
    """
    with ExitStack() as stack:

        def name() -> tuple[RunFolder, dict[str, Any]]:
            if ranks.rank > 0:
                return RunFolder(config), {}
            return stack.enter_context(run_folder(_restarted(config))), {}

        folder = ranks.agree(name, "the folder")
        train = folder.config.train
        chosen = ranks.gather(None if train == config.train else train)[0]
        if ranks.rank > 0:
            # Further ranks have nothing to undo.
            folder.begin(Console(quiet=True))
            if chosen is not None:
                same = {key: getattr(chosen, key) for key in ("out", "resume", "replace")}
                folder.config = replace(config, train=replace(config.train, **same))
        yield folder


def _is_empty(path: Path) -> bool:
    """Whether an empty folder is at a path."""
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _empty(folder: Path, kept: Path | None = None) -> None:
    """Remove the content of a folder, but for the entry that is or holds `kept`."""
    for entry in folder.iterdir():
        if kept is not None and kept.absolute().is_relative_to(entry.absolute()):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _remove_rows(rows: Path, *, keep_folder: bool) -> None:
    """Remove the rows of one process, or a link to rows, if there is no checkpoint and no process has them open.

    A folder that was there before the command stays: it may be a mount point, or have an owner of its own.
    """
    if rows.is_symlink():
        rows.unlink()
        return
    try:
        lock = take_lock(rows)
    except StoreLocked:
        return
    try:
        # Other ranks may still have theirs open.
        if not has_checkpoint(rows) and not is_of_ranks([entry.name for entry in rows.iterdir()]):
            if keep_folder:
                _empty(rows)
            else:
                shutil.rmtree(rows)
    finally:
        lock.release()


def _restarted(config: Config) -> Config:
    """The settings of ranks that torchrun may have started again."""
    restarts = Restarts.here()
    if restarts is None or restarts.count == 0:
        return config
    if restarts.memory is None:
        # Nothing tells what the earlier start has done.
        named = config.train.out != LATEST and not config.train.replace
        return _resumed(config, config.train.out) if named else config
    if (kept := restarts.recall(_BEGUN)) is None:
        return config
    out = Path(kept)
    if config.train.replace and not any(map(has_checkpoint, rows_in(out))):
        return config
    return _resumed(config, out)


def remember_begun(config: Config) -> None:
    """Tell later starts of these ranks by torchrun that this one has prepared the folder of the run."""
    if (restarts := Restarts.here()) is not None:
        restarts.remember(_BEGUN, str(config.train.out))


def _resumed(config: Config, out: Path) -> Config:
    return replace(config, train=replace(config.train, out=out, resume=True, replace=False))


def _with_out(config: Config, out: Path) -> Config:
    return replace(config, train=replace(config.train, out=out))


def _point_latest(out: Path) -> None:
    """Make `out/latest` a link to this folder, atomically."""
    new = LATEST.with_name(f".{LATEST.name}-{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(out.name)
    new.replace(LATEST)


def _latest() -> Path:
    if not LATEST.is_symlink():
        return LATEST
    out = LATEST.parent / LATEST.readlink()
    if not out.is_dir():
        raise ConfigError(
            f"cannot resume: {LATEST} points to {out}, which does not exist: pass the folder of a run with --out"
        )
    return out


def _new_folder(task: str) -> Path:
    if os.path.lexists(LATEST) and not LATEST.is_symlink():
        raise ConfigError(
            f"{LATEST} is not a link to the latest run: rename it, or pass the folder of this run with --out"
        )
    try:
        LATEST.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(
            f"{LATEST.parent} is a file, or a link to a folder that does not exist: remove it, or pass the folder of this "
            "run with --out"
        ) from None
    first = LATEST.with_name(f"{task}-{datetime.now():%Y%m%d-%H%M%S}")
    out, number = first, 1
    while True:
        try:
            out.mkdir()
        except FileExistsError:
            # Another run began in this second.
            number += 1
            out = first.with_name(f"{first.name}-{number}")
        else:
            return out
