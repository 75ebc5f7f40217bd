"""Versions of the checkpoint of many ranks: listed, rolled back to and dropped while no run uses the folder.

Every part keeps a version of the same name. Its file beside `CHECKPOINT` is the manifest that the checkpoint had.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rowmill import _core
from rowmill.distributed._checkpoint.checkpoint import state_file, take_lock, version_file
from rowmill.distributed._checkpoint.manifest import Manifest
from rowmill.distributed._checkpoint.remote import PushOfRanks
from rowmill.errors import CheckpointMissing, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def versions_of_ranks(folder: Path) -> list[dict[str, Any]]:
    """The versions in a folder of `rowmill.distributed.Checkpoint`, oldest first.

    Returns:
        As `rowmill.versions`: `number` is that of the checkpoint of all ranks, rows and bytes are sums over the parts.
    """
    manifest = _manifest(folder)
    # A part may have one version more or less, if a crash came between the manifest and the commits.
    parts = [{v["name"]: v for v in _core.versions(str(part))} for part in _parts(folder, manifest)]
    found: list[dict[str, Any]] = []
    for first in parts[0].values():
        version = Manifest.read(version_file(folder, first["number"]))
        if version is None or not all(first["name"] in part for part in parts):
            continue
        own = [part[first["name"]] for part in parts]
        sums = {name: sum(part[name] for part in own) for name in ("rows", "bytes_alone")}
        found.append({**first, "number": version.number, **sums})
    return found


def checkpoint_of_ranks(
    folder: Path, version: str | None
) -> tuple[Manifest, list[tuple[Path, int, int | None]]]:
    """A checkpoint of all ranks, to read it; a run may use the folder.

    Args:
        folder: Folder of a `rowmill.distributed.Checkpoint`.
        version: Name or number of a version; None: the last checkpoint.

    Returns:
        Its manifest, and for each rank the folder of its store, the number of the last checkpoint there, and that of the
        version, if one is given.

    Raises:
        InvalidInput: There is no such version; the message lists those that exist.
    """
    last = _manifest(folder)
    parts = _parts(folder, last)
    if version is None:
        return last, [(part, at, None) for part, at in zip(parts, last.epochs, strict=True)]
    chosen = Manifest.read(version_file(folder, _find(folder, version)[1]))
    assert chosen is not None, "it was read before"
    return chosen, list(zip(parts, last.epochs, chosen.epochs, strict=True))


def rollback_ranks(folder: Path, version: str) -> int:
    """Make a version the last checkpoint of all ranks; no run may use the folder.

    Args:
        folder: Folder of a `rowmill.distributed.Checkpoint`.
        version: Name or number of the version.

    Returns:
        The number of the new checkpoint.

    Raises:
        InvalidInput: There is no such version; the message lists those that exist.
        StoreLocked: A run uses the folder.
    """
    lock = take_lock(folder)
    try:
        manifest = _settled(folder)
        name, epoch = _find(folder, version)
        chosen = Manifest.read(version_file(folder, epoch))
        assert chosen is not None, "it was read before"
        number = manifest.number + 1
        state = state_file(folder, number)
        state.unlink(missing_ok=True)
        _link(state_file(folder, chosen.number), state)
        # Prepared, then named by the manifest, then committed: as in `Checkpoint.save`.
        epochs = [_core.prepare_rollback(str(part), name) for part in _parts(folder, manifest)]
        replace(chosen, number=number, epochs=epochs).save(folder)
        _settled(folder)
        return number
    finally:
        lock.release()


def drop_version_of_ranks(folder: Path, version: str) -> None:
    """Drop a version of all parts; raises as `rollback_ranks`. The next save removes its other files."""
    lock = take_lock(folder)
    try:
        manifest = _settled(folder)
        name, _ = _find(folder, version)
        # Part 0 last: it says which versions there are.
        for part in reversed(_parts(folder, manifest)):
            if any(kept["name"] == name for kept in _core.versions(str(part))):
                _core.drop_version(str(part), name)
    finally:
        lock.release()


def push_ranks(folder: Path, url: str, *, keep: int = 3, files: Mapping[str, Path]) -> int:
    """Push the last checkpoint of all ranks; no run may use the folder.

    Args:
        folder: Folder of a `rowmill.distributed.Checkpoint`.
        url: As of `Store.push`.
        keep: Number of checkpoints to keep there.
        files: Further files of the folder that belong to the checkpoint, by name.

    Returns:
        The number of the checkpoint.
    """
    lock = take_lock(folder)
    try:
        manifest = _settled(folder)
        with state_file(folder, manifest.number).open("rb") as state:
            push = PushOfRanks(manifest, state, files, url=url, keep=keep)
            push.run_alone(_parts(folder, manifest))
        return manifest.number
    finally:
        lock.release()


def _manifest(folder: Path) -> Manifest:
    manifest = Manifest.load(folder)
    if manifest is None:
        raise CheckpointMissing(
            f"{folder} has no checkpoint of many ranks: pass the folder that a Checkpoint saved to"
        )
    return manifest


def _parts(folder: Path, manifest: Manifest) -> list[Path]:
    parts = folder / f"parts-{manifest.generation}"
    return [parts / str(rank) for rank in range(len(manifest.epochs))]


def _settled(folder: Path) -> Manifest:
    """The manifest, with every part at the checkpoint that it names."""
    manifest = _manifest(folder)
    for part, epoch in zip(_parts(folder, manifest), manifest.epochs, strict=True):
        _core.settle(str(part), epoch)
    return manifest


def _find(folder: Path, version: str) -> tuple[str, int]:
    """Name of a version, and its epoch in rank 0's store."""
    there = versions_of_ranks(folder)
    for found in there:
        if version in (found["name"], str(found["number"])):
            part = _parts(folder, _manifest(folder))[0]
            of_part = {kept["name"]: kept["number"] for kept in _core.versions(str(part))}
            return found["name"], of_part[found["name"]]
    known = ", ".join(repr(found["name"]) for found in there) or "no versions"
    raise InvalidInput(
        f"version must be one that {folder} keeps, which has {known}; got {version!r}"
    )


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, durably; copy it where the file system has no links."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
