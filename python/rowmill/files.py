"""Files that people give a run, or that it writes for them: errors that name them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rowmill.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def writing(file: Path) -> Generator[None]:
    """Name the file where writing it fails, as libraries do not."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, why, str(file)) from None


def check_text(beginning: bytes, path: Path) -> None:
    """Raise if a file that begins so is plainly no text with LF or CRLF behind its lines."""
    if beginning.startswith(b"\x1f\x8b"):
        raise DataError(f"{path} is compressed with gzip: unpack it first (gunzip)")
    if beginning.startswith(b"PAR1"):
        raise DataError(f"{path} is a parquet file: name it *.parquet")
    if b"\0" in beginning:
        raise DataError(f"{path} holds zero bytes, so it is no text in UTF-8; convert it first")
    if b"\r" in beginning and b"\n" not in beginning:
        raise DataError(f"{path} ends its lines with CR alone; convert them to LF or CRLF")
