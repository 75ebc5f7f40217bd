"""Checkpoints at a URL: list and restore them. `Store.push` uploads them.

A URL is `s3://bucket/path`, `gs://bucket/path`, `az://container/path` or `file:///path`. Credentials and endpoints
come from each service's usual environment variables:

- S3: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`; for servers other than Amazon's also `AWS_ENDPOINT`
  and, without TLS, `AWS_ALLOW_HTTP=true`.
- Google: `GOOGLE_SERVICE_ACCOUNT`.
- Azure: `AZURE_STORAGE_ACCOUNT_NAME` and `AZURE_STORAGE_ACCOUNT_KEY`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill import _core
from rowmill.files import link_or_copy
from rowmill.size import check_int

if TYPE_CHECKING:
    from collections.abc import Generator

KEEP_MAX = 10_000
_LOCK = "LOCK"


def checkpoints(url: str) -> list[dict[str, Any]]:
    """List the checkpoints at a URL, oldest first.

    Returns:
        For each checkpoint: `epoch` (its number), `rows`, `bytes` (of its parts), and `pushed_s` (time of the push
        in seconds since 1970, by the object store's clock).
    """
    return _core.checkpoints(url)


def restore(
    url: str, path: str | os.PathLike[str], *, checkpoint: int | None = None
) -> dict[str, Any]:
    """Download a checkpoint from a URL into a folder that then opens as a store.

    The folder must be new, empty, or left by an interrupted restore, which this call completes. Until the restore is
    complete, the folder does not open as a store.

    Args:
        url: The URL given to `Store.push`.
        path: The folder.
        checkpoint: The checkpoint's number (`epoch`), one of `checkpoints(url)`; None: the latest.

    Returns:
        `epoch` (the number), `rows`, `bytes` (of the checkpoint) and `bytes_downloaded`.

    Examples:
        >>> import tempfile, rowmill
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> url = (folder / "copies").as_uri()
        >>> with rowmill.open(folder / "store", memory="16MiB") as store:
        ...     words = store.table("words", dim=1, optimizer=rowmill.optim.SGD(lr=0.5))
        ...     words.put([7], [[1.0]])
        ...     info = store.checkpoint()
        ...     info = store.push(url)
        >>> rowmill.restore(url, folder / "restored")["epoch"]
        1
        >>> with rowmill.open(folder / "restored", memory="16MiB") as store:
        ...     store.open_table("words").get([7]).tolist()
        [[1.0]]
    """
    if checkpoint is not None:
        checkpoint = check_int(checkpoint, "checkpoint", 0, 2**63)
    return _core.restore(url, os.fspath(path), checkpoint)


def push_folder(
    path: Path, url: str, *, keep: int = 3, version: str | None = None
) -> dict[str, Any]:
    """As `Store.push`, for a store that no process has open for writing.

    Args:
        path: Folder of the store.
        url: As of `Store.push`. A version is the next checkpoint of another history, as after a rollback, so it needs a URL of
            its own.
        keep: As of `Store.push`.
        version: Name or number of the version to push; None: the last checkpoint.

    Raises:
        InvalidInput: There is no such version; the message lists those that exist.
    """
    keep = check_int(keep, "keep", 1, KEEP_MAX)
    if version is None:
        return _core.push_folder(str(path), url, keep)
    with _at_version(path, version) as folder:
        return _core.push_folder(str(folder), url, keep)


@contextmanager
def _at_version(path: Path, version: str) -> Generator[Path]:
    """A second folder of a store, beside it, that is rolled back to a version. Its files are links to those of the store."""
    path = path.resolve()
    _core.versions(str(path))  # The error of a folder without a checkpoint.
    lock = _core.FolderLock.take(str(path))
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            for file in path.iterdir():
                # A rollback replaces the manifest, and writes no other file.
                if file.is_file() and file.name != _LOCK:
                    link_or_copy(file, folder / file.name)
            _core.rollback(str(folder), version)
            yield folder
        finally:
            shutil.rmtree(folder)
    finally:
        lock.release()
