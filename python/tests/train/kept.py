"""What a command may not damage: checkpoints of runs, checked after each failing command; and a kill between two steps."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from rowmill.cli import main
from rowmill.distributed import Manifest
from rowmill.train.found_run import has_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REMOVED_MAX = 2
"""Files removed one by one, between which a kill is tried; further ones are like them."""


def contents(*folders: Path) -> dict[Path, bytes]:
    """All files of folders by path; without locks, which hold the number of the last process."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files if file.name != "LOCK"}


def check_whole(rows: Path) -> None:
    """Check every block of a run's rows, of one process or of ranks."""
    manifest = Manifest.load(rows)
    parts = [rows]
    if manifest is not None:
        numbers = range(len(manifest.epochs))
        parts = [rows / f"parts-{manifest.generation}" / str(number) for number in numbers]
    for part in parts:
        assert main(["fsck", str(part)]) == 0, part


def with_checkpoints(*folders: Path) -> list[Path]:
    """Those of the folders that have a checkpoint, each checked."""
    found = [folder for folder in folders if has_checkpoint(folder)]
    for folder in found:
        check_whole(folder)
    return found


def kill_before(number: int, of: str, counted: Path) -> None:
    """From now on, this process is killed before its change number `number` of a folder, counted from 1.

    Args:
        number: The number; 0 kills never.
        of: Only paths with this text count.
        counted: File for the number of changes so far.
    """
    seen = removed = 0

    def count(*paths: Any) -> None:
        nonlocal seen
        if not any(of in os.fspath(path) for path in paths):
            return
        seen += 1
        counted.write_text(str(seen))
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def counting(change: Callable[..., None]) -> Callable[..., None]:
        def counted_change(*arguments: Any, **options: Any) -> None:
            nonlocal removed
            if options.get("dir_fd") is None:
                count(*(path for path in arguments if isinstance(path, str | os.PathLike)))
            elif removed < REMOVED_MAX:
                # `shutil.rmtree` removes files by their name in an open folder.
                removed += 1
                count(of)
            change(*arguments, **options)

        return counted_change

    for name in ("mkdir", "rename", "replace", "symlink", "unlink", "rmdir"):
        setattr(os, name, counting(getattr(os, name)))
