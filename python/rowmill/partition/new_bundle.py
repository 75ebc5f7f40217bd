"""A bundle while it is written: a hidden folder beside its final path, which gets the final name at the end.

So its path has a complete bundle or nothing. A killed process leaves the hidden folder, `.NAME.` and random letters.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rowmill.errors import BundleExists, StoreFull
from rowmill.files import make_durable, sync_folder

if TYPE_CHECKING:
    from collections.abc import Generator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 1 << 20


def new_path(out: str | os.PathLike[str]) -> Path:
    """Where a bundle will be; raises `BundleExists` if something is there."""
    path = Path(out)
    if path.exists() or path.is_symlink():
        raise BundleExists(f"{path} exists: remove it, or give another path")
    return path


@contextmanager
def bundle_folder(path: Path) -> Generator[Path]:
    """A hidden folder that gets the name `path` when all is written, and is removed on an error.

    Raises:
        BundleExists: Something appeared at `path` meanwhile.
        OSError: As `hidden_folder`.
    """
    with hidden_folder(path) as folder:
        yield folder
        folder.chmod(0o755)
        make_durable(folder)
        # A rename would replace an empty folder that appeared meanwhile.
        new_path(path)
        folder.rename(path)
        sync_folder(path.parent)


@contextmanager
def hidden_folder(path: Path) -> Generator[Path]:
    """A hidden folder next to `path` that is removed at the end.

    Raises:
        OSError: With ENOSPC if the disk is full, also if a library raised another error for it; names `path` and bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
    except Exception as error:
        if getattr(error, "filename", None) != str(path) and _is_full(folder, error):
            written = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            free = shutil.disk_usage(folder).free
            raise OSError(
                errno.ENOSPC,
                f"no space left for the bundle: {written} bytes of it were written and {free} bytes were free; free "
                "space, or choose another file system",
                str(path),
            ) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_full(folder: Path, error: Exception) -> bool:
    if isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in _FULL):
        return True
    # Libraries that write tensors raise errors of their own, which do not say why.
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _PROBE_BYTES)
    except OSError as probe:
        return probe.errno in _FULL
    return False
