"""Errors of input and output files that name the file; files that are linked or made durable."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rowmill.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# Why a file system makes no hard link: the target is on another one, it has no links, or the file has too many.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def writing(file: Path) -> Generator[None]:
    """Add the file's name to an `OSError` raised in the block; libraries often omit it."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, why, str(file)) from None


def link_or_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Give a file a second name, or copy it where the file system makes no such link."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copy2(source, target)


def make_durable(folder: Path) -> None:
    """Bring all files below a folder, and their names, to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def check_text(beginning: bytes, path: Path) -> None:
    """Raise `DataError` if the first bytes of a file show that it is not text with LF or CRLF line ends."""
    if beginning.startswith(b"\x1f\x8b"):
        raise DataError(f"{path} is compressed with gzip: unpack it first (gunzip)")
    if beginning.startswith(b"PAR1"):
        raise DataError(f"{path} is a parquet file: name it *.parquet")
    if b"\0" in beginning:
        raise DataError(f"{path} holds zero bytes, so it is not UTF-8 text; convert it first")
    if b"\r" in beginning and b"\n" not in beginning:
        raise DataError(f"{path} ends its lines with CR alone; convert them to LF or CRLF")
