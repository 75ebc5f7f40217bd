"""`rowmill push`, `checkpoints` and `restore`: checkpoints at a URL, of a store or of the stores of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rowmill.distributed import (
    CHECKPOINT_FILE,
    Manifest,
    checkpoints_of_ranks,
    is_of_ranks_at,
    push_ranks,
    restore_ranks,
)
from rowmill.errors import InvalidInput
from rowmill.store.remote import checkpoints, push_folder, restore
from rowmill.train.run_files import files_of

if TYPE_CHECKING:
    from pathlib import Path


def push(path: Path, url: str, *, keep: int, version: str | None) -> str:
    """Push a checkpoint of a store, or of all ranks; returns what was done, as text."""
    if not (path / CHECKPOINT_FILE).exists():
        done = push_folder(path, url, keep=keep, version=version)
        return f"checkpoint {done['epoch']} is at {url}: {done['bytes_uploaded']:,} of {done['bytes']:,} bytes uploaded"
    if version is not None:
        raise InvalidInput(
            f"--version works with a store of one process, and {path} has the stores of many ranks: roll back a copy of it "
            "to the version, and push the copy"
        )
    manifest = Manifest.load(path)
    position = None if manifest is None else manifest.position
    described = cast("dict[str, Any]", position) if isinstance(position, dict) else {}
    names = files_of(described).values()
    number = push_ranks(path, url, keep=keep, files={name: path / name for name in names})
    return f"checkpoint {number} is at {url}, with the parts of all ranks"


def checkpoints_at(url: str) -> list[dict[str, Any]]:
    """The checkpoints at a URL, oldest first, as `rowmill.checkpoints` returns them."""
    return checkpoints_of_ranks(url) if is_of_ranks_at(url) else checkpoints(url)


def restore_from(url: str, folder: Path, *, checkpoint: int | None = None) -> dict[str, Any]:
    """Restore a checkpoint of a store, or of all ranks, as `rowmill.restore` does."""
    if is_of_ranks_at(url):
        return restore_ranks(url, folder, checkpoint=checkpoint)
    return restore(url, folder, checkpoint=checkpoint)
