"""Checkpoints of all ranks at a URL.

Every rank pushes its part to a URL of its own, and reads no files of other ranks. Rank 0 then writes the state, and the manifest
last: it makes the checkpoint visible. `docs/reference/remote-layout.md` lists the objects.

A checkpoint is removed by removing its manifest. Parts keep all checkpoints that a visible manifest names.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import crc32

from rowmill import _core
from rowmill.distributed._checkpoint.manifest import CHECKPOINT_FILE, Manifest, write_durable
from rowmill.errors import CheckpointMissing, InvalidInput, RemoteConflict, StoreCorrupt
from rowmill.store.remote import checkpoints, push_folder, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rowmill.distributed.ranks import Ranks
    from rowmill.store.store import Store

_FOLDER = "ranks"
_CHECKPOINTS = f"{_FOLDER}/checkpoints"
_FILES = f"{_FOLDER}/files"
_STATE = "state"
_LIST = "files"


class PushOfRanks:
    """The push of one checkpoint of all ranks.

    Args:
        manifest: The checkpoint.
        state: On rank 0 its open state file, which may be removed meanwhile; it is closed at the end.
        files: On rank 0 further files that belong to it, by name.
        url: Where it is copied to.
        keep: Number of checkpoints to keep there.
    """

    def __init__(
        self,
        manifest: Manifest,
        state: BinaryIO | None,
        files: Mapping[str, Path],
        *,
        url: str,
        keep: int,
    ) -> None:
        self._manifest = manifest
        self._state = state
        self._files = files
        self._url = url.rstrip("/")
        self._keep = keep

    def run(self, ranks: Ranks, store: Store) -> bool:
        """Push the checkpoint, which is the last one of all stores. A collective.

        Returns:
            Whether it is at the URL: False if a store had saved the next checkpoint before it was read.

        Raises:
            RemoteConflict: On every rank, if another run writes to the URL.
        """

        def look() -> tuple[tuple[list[int]], dict[str, Any]]:
            return (self._least() if ranks.rank == 0 else [],), {}

        def push() -> tuple[tuple[int], dict[str, Any]]:
            return (self._push(ranks.rank, least[ranks.rank], store.push),), {}

        def finish() -> tuple[tuple[()], dict[str, Any]]:
            if ranks.rank == 0:
                self._finish()
            return (), {}

        try:
            (mine,) = ranks.agree(look, "the copy")
            least = ranks.gather(mine)[0]
            if not least:
                return True
            (epoch,) = ranks.agree(push, "the copy")
            if ranks.gather(epoch) != self._manifest.epochs:
                return False
            ranks.agree(finish, "the copy")
        finally:
            if self._state is not None:
                self._state.close()
        return True

    def run_alone(self, parts: Sequence[Path]) -> None:
        """Push the checkpoint from the folders of all parts, which no process has open for writing."""
        least = self._least()
        if not least:
            return
        for rank, part in enumerate(parts):
            self._push(rank, least[rank], partial(push_folder, part))
        self._finish()

    def _least(self) -> list[int]:
        """For each rank, the oldest checkpoint of its store that must stay at the URL; empty if this checkpoint is there."""
        ours = self._manifest
        there = _manifests(self._url)
        last = there[-1] if there else None
        if last is not None and last.number >= ours.number:
            if last.id == ours.id:
                return []
            raise RemoteConflict(
                f"{self._url} has checkpoint {last.number} of another run, or of one that went on elsewhere, and this is "
                f"checkpoint {ours.number}: push to another URL"
            )
        kept = [of for of in there[-self._keep :] if of.generation == ours.generation]
        return kept[0].epochs if kept else ours.epochs

    def _push(self, rank: int, least: int, push: Callable[..., dict[str, Any]]) -> int:
        url = part_url(self._url, self._manifest.generation, rank)
        stay = sum(found["epoch"] >= least for found in checkpoints(url))
        return push(url, keep=stay + 1)["epoch"]

    def _finish(self) -> None:
        """Write everything but the parts, the manifest last, and remove what no manifest names."""
        number, url = self._manifest.number, self._url
        assert self._state is not None, "rank 0 has the state"
        known = {key for key, _ in _core.remote_list(url, _FILES)}
        for name, path in self._files.items():
            if f"{_FILES}/{name}" not in known:
                _core.remote_write(url, f"{_FILES}/{name}", path.read_bytes())
        _core.remote_write(url, _key(number, _STATE), self._state.read())
        _core.remote_write(url, _key(number, _LIST), json.dumps(sorted(self._files)).encode())
        _core.remote_write(url, _key(number, CHECKPOINT_FILE), self._manifest.sealed())
        self._clean()

    def _clean(self) -> None:
        url, there = self._url, _manifests(self._url)
        gone, kept = there[: -self._keep], there[-self._keep :]
        # First it is not visible any more.
        _core.remote_remove(url, [_key(of.number, CHECKPOINT_FILE) for of in gone])
        named = {f"{_FILES}/{name}" for of in kept for name in _listed(url, of.number)}
        folders = {f"{_CHECKPOINTS}/{of.number:020}/" for of in kept}
        folders |= {f"{_FOLDER}/parts-{of.generation}/" for of in kept}
        unnamed = [
            key
            for key, _ in _core.remote_list(url, _FOLDER)
            if key not in named and not any(map(key.startswith, folders))
        ]
        _core.remote_remove(url, unnamed)


def is_of_ranks_at(url: str) -> bool:
    """Whether there are checkpoints of many ranks at a URL."""
    return bool(_numbers(url))


def checkpoints_of_ranks(url: str) -> list[dict[str, Any]]:
    """As `rowmill.checkpoints`, for checkpoints of many ranks; `epoch` is the number of the checkpoint of all ranks.

    `rows` counts a row that every rank has (of a `replicated` table) once for each of them.
    """
    url = url.rstrip("/")
    pushed = dict(_numbers(url))
    parts: dict[str, dict[int, dict[str, Any]]] = {}
    found: list[dict[str, Any]] = []
    for manifest in _manifests(url):
        rows = size = 0
        for rank, epoch in enumerate(manifest.epochs):
            part = part_url(url, manifest.generation, rank)
            if part not in parts:
                parts[part] = {of["epoch"]: of for of in checkpoints(part)}
            of_part = parts[part].get(epoch, {"rows": 0, "bytes": 0})
            rows, size = rows + of_part["rows"], size + of_part["bytes"]
        number = manifest.number
        found.append({"epoch": number, "rows": rows, "bytes": size, "pushed_s": pushed[number]})
    return found


def restore_ranks(url: str, folder: Path, *, checkpoint: int | None = None) -> dict[str, Any]:
    """As `rowmill.restore`, for a checkpoint of many ranks: the folder is then one of `rowmill.distributed.Checkpoint`.

    Args:
        url: The URL.
        folder: A new or empty folder, or one that an interrupted restore of this checkpoint has left.
        checkpoint: Its number; None: the latest.
    """
    url = url.rstrip("/")
    there = {of.number: of for of in _manifests(url)}
    if checkpoint is not None and checkpoint not in there:
        known = ", ".join(map(str, there))
        raise CheckpointMissing(f"{url} has no checkpoint {checkpoint}: it has {known}")
    manifest = there[max(there) if checkpoint is None else checkpoint]
    if (folder / CHECKPOINT_FILE).exists():
        raise InvalidInput(f"{folder} has a checkpoint already: restore into another folder")
    done = {"epoch": manifest.number, "rows": 0, "bytes": 0, "bytes_downloaded": 0}
    for rank, epoch in enumerate(manifest.epochs):
        part = folder / f"parts-{manifest.generation}" / str(rank)
        if (part / "MANIFEST").exists() and not (part / "RESTORING").exists():
            # An interrupted restore has completed this part.
            if _core.Changes.open(str(part), 0).until != epoch:
                raise InvalidInput(
                    f"{folder} has parts of another checkpoint: restore into another folder"
                )
            continue
        part.mkdir(parents=True, exist_ok=True)
        of_part = restore(part_url(url, manifest.generation, rank), part, checkpoint=epoch)
        for name in ("rows", "bytes", "bytes_downloaded"):
            done[name] += of_part[name]
    state = _read(url, _key(manifest.number, _STATE))
    if (len(state), crc32(state)) != (manifest.state_bytes, manifest.state_crc):
        raise StoreCorrupt(
            f"{url}/{_key(manifest.number, _STATE)} is damaged: it does not match its checksum in the manifest"
        )
    write_durable(folder / f"state-{manifest.number}.pt", state)
    for name in _listed(url, manifest.number):
        write_durable(folder / name, _read(url, f"{_FILES}/{name}"))
    manifest.save(folder)
    return done


def part_url(url: str, generation: int, rank: int) -> str:
    """The URL of the store of a rank."""
    return f"{url}/{_FOLDER}/parts-{generation}/{rank}"


def _key(number: int, name: str) -> str:
    return f"{_CHECKPOINTS}/{number:020}/{name}"


def _numbers(url: str) -> list[tuple[int, int]]:
    """Numbers of the visible checkpoints, ascending, and when they were pushed."""
    found = ((key.split("/"), pushed_s) for key, pushed_s in _core.remote_list(url, _CHECKPOINTS))
    return [(int(path[-2]), at) for path, at in found if path[-1] == CHECKPOINT_FILE]


def _manifests(url: str) -> list[Manifest]:
    """The visible checkpoints, oldest first."""
    found: list[Manifest] = []
    for number, _ in _numbers(url):
        key = _key(number, CHECKPOINT_FILE)
        content = _core.remote_read(url, key)
        if content is not None:
            found.append(Manifest.parse(content, f"{url}/{key}"))
    return found


def _listed(url: str, number: int) -> list[str]:
    return json.loads(_read(url, _key(number, _LIST)))


def _read(url: str, key: str) -> bytes:
    content = _core.remote_read(url, key)
    if content is None:
        raise CheckpointMissing(f"{url}/{key} is missing: a checkpoint there names it")
    return content
