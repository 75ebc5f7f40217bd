"""What is wrong with the data, where, and what to do about it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class DataError(InvalidInput):
    """Bad input data. The message names file, row, column, value and the fix, as far as they exist."""


@contextmanager
def writing(file: Path) -> Generator[None]:
    """Name the file where writing it fails, as libraries do not."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, why, str(file)) from None
