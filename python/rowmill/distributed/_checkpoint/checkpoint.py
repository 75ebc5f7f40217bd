"""Atomic checkpoints of all ranks: the rows of every rank, the dense model, its optimizer and random streams.

It is a two-phase commit. Every rank's store prepares its part. When all parts are durable, rank 0 writes the manifest, which
*is* the checkpoint. Then all stores commit. After a crash before or after the manifest was written, the manifest gives the
epoch at which each store must open.

In the folder:

    CHECKPOINT                  the manifest
    state-<number>.pt           dense weights, their optimizer, the random stream of every rank
    parts-<generation>/<rank>   the store of a rank; a new number of ranks begins a new generation
    version-<epoch>.json        the manifest of a version, named by the epoch of rank 0's store
    LOCK                        held by the run that uses the folder; contains the run's id
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rowmill import _core, store
from rowmill.distributed._checkpoint.manifest import Manifest, write_durable
from rowmill.distributed._checkpoint.remote import PushOfRanks
from rowmill.distributed._checkpoint.room import check_room, disk_of, rows_of
from rowmill.distributed._exchange.category import category_of
from rowmill.distributed.placement import check_placements, placement_in, placements
from rowmill.errors import (
    CheckpointMissing,
    InvalidInput,
    StoreCorrupt,
    StoreLocked,
    StoreMissing,
)
from rowmill.nn import dense_state_dict, load_dense_state_dict
from rowmill.size import parse_size
from rowmill.store.sharding import Sharding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rowmill.distributed.cost import TableLoad
    from rowmill.distributed.placement import PlacementSetting
    from rowmill.distributed.ranks import Ranks
    from rowmill.store.eviction import TableRules
    from rowmill.store.store import Store
    from rowmill.store.versions import NewVersion

PART = "rowmill.distributed"
"""Name of the attachment that says of which checkpoint a store is a part, and of which rank."""
_CLEARED = r"parts-\d+|(state-\d+\.pt|version-\d+\.json)(\.new)?"
"""Names of the files and folders that a save may remove."""
_T = TypeVar("_T")


class Checkpoint:
    """The folder in which all ranks of a run save checkpoints, and from which they resume.

    With the same number of ranks, a resumed run is bit-identical to an uninterrupted one. A different number of ranks can
    resume too, and so can other placements of tables: each rank reads the rows that it keeps now, in batches, with optimizer
    state, stamps and counters, but without clocks. All methods are collectives.

    Args:
        folder: A folder shared by all ranks, for this run only.
        ranks: The participating ranks, which must be all ranks of torch.distributed.
        timeout_s: Longest wait for another rank's part, in seconds.

    Examples:
        In every process that `torchrun` starts::

            checkpoint = Checkpoint("run", ranks=ranks)
            with checkpoint.open(memory="2GiB") as store:
                ...  # tables, collection, model and optimizer, as always
                begin = checkpoint.restore(model, optimizer) or 0
                for step in range(begin, steps):
                    ...
                    if (step + 1) % 1000 == 0:
                        checkpoint.save(model, optimizer, position=step + 1)
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, ranks: Ranks, timeout_s: float = 1800.0
    ) -> None:
        self.folder = Path(folder)
        if (dist.get_rank(), dist.get_world_size()) != (ranks.rank, ranks.count):
            raise InvalidInput(
                "ranks does not match torch.distributed, which was initialized again since: create a new Ranks()"
            )
        # Parts differ in size, so waits are longer than in an exchange.
        self._ranks = ranks.apart(backend="gloo", timeout_s=timeout_s)
        self._manifest: Manifest | None = None
        self._generation = 1
        self._run = ""
        self._store: Store | None = None
        self._lock: _core.FolderLock | None = None

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r})"

    @property
    def number(self) -> int:
        """Number of the last checkpoint; 0 if there is none."""
        return 0 if self._manifest is None else self._manifest.number

    @property
    def position(self) -> Any:
        """The position saved in the last checkpoint; None if there is none."""
        return None if self._manifest is None else self._manifest.position

    def open(
        self,
        *,
        seed: int = 0,
        placement: PlacementSetting | None = None,
        memory: int | str = "2GiB",
        **options: Any,
    ) -> Store:
        """Open this rank's store at the last checkpoint, or create it.

        Args:
            seed: Seed of the initializers, fixed when the first store is created.
            placement: As for `ShardedCollection`, which uses it for tables of this store. If the checkpoint has other
                placements, rows move to the ranks that keep them now. None or "auto": those of the checkpoint.
            memory: Memory budget of this rank's store.
            options: Other options of `rowmill.open`; not `at`, `create` or `read_only`.

        Raises:
            InvalidInput: On every rank, if ranks see different folders or checkpoints, or have different seeds; or if a
                rank, which is named, lacks memory or disk for rows that would move to it: then none has moved.
            ExchangeFailed: On every rank, if one rank could not open its part.
        """
        for option in ("at", "create", "read_only"):
            if option in options:
                raise InvalidInput(f"{option} is set by the checkpoint: remove it from the options")

        def look() -> tuple[tuple[Manifest | None, str, Sharding], dict[str, Any]]:
            self.folder.mkdir(parents=True, exist_ok=True)
            drawn = uuid4().hex
            if self._ranks.rank == 0:
                self._take_lock(drawn)
            manifest = Manifest.load(self.folder)
            sharding = self._sharding(manifest, placement)
            said = {
                "its id": manifest and manifest.id,
                "the seed": seed,
                "the placement": sharding.setting,
            }
            return (manifest, drawn, sharding), said

        self._manifest, drawn, sharding = self._ranks.agree(look, "the checkpoint")
        self._run = self._ranks.gather(drawn)[0]
        # Compare the contents of LOCK: empty folders without a manifest look equal even if they are different folders.
        self._together(self._check_folder)
        if self._manifest is not None and self._moves(self._manifest, sharding):
            self._check_sizes(self._manifest, options.get("alter") or {})
            self._check_room(self._manifest, sharding, memory)
        opened: list[Store] = []

        def make() -> tuple[Store, dict[str, Any]]:
            opened.append(self._open_part(seed, sharding, {**options, "memory": memory}))
            return self._fill(opened[0]), {}

        try:
            self._store = self._ranks.agree(make, "their parts")
        except Exception:
            for mine in opened:
                mine.close()
            raise
        return self._store

    def save(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        position: Any = None,
        attachments: Mapping[str, bytes] | None = None,
        version: NewVersion | None = None,
    ) -> int:
        """Save the rows of all ranks, the model, its optimizer and torch's random streams, durably and atomically.

        Call it between steps, on every rank. If it raises, end the run, and resume from the last checkpoint.

        Args:
            model: The dense model; rank 0's weights are saved.
            optimizer: Optimizer of the dense weights.
            position: Position in the data: numbers, strings, lists or dicts, equal on every rank.
            attachments: Bytes of this rank, for `Store.attachment`. They are lost if rows move to other ranks.
            version: Keep this checkpoint as a version; rank 0's counts. A change of the number of ranks or of placements
                drops all versions.

        Returns:
            Number of the checkpoint.
        """
        mine = self._opened()
        number = self.number + 1
        # Checked before anything is written.
        self._ranks.agree(lambda: ((), {"the position": _json(position)}), "the checkpoint")
        id_ = f"{self._run}-{number}"
        part = json.dumps({"id": id_, "rank": self._ranks.rank}).encode()
        # Measured metrics may differ between ranks, and all must keep the same versions.
        version = self._ranks.gather(version)[0]
        epoch = self._together(
            lambda: mine.prepare(attachments={**(attachments or {}), PART: part}, version=version)[
                "epoch"
            ]
        )
        parts = self._ranks.gather((epoch, torch.get_rng_state()))

        def write() -> Manifest | None:
            if self._ranks.rank > 0:
                return None
            state = _packed(model, optimizer, [stream for _, stream in parts])
            write_durable(state_file(self.folder, number), state)
            manifest = Manifest(
                id=id_,
                number=number,
                generation=self._generation,
                epochs=[epoch for epoch, _ in parts],
                seed=mine.seed,
                tables=mine.table_names(),
                position=position,
                state_bytes=len(state),
                state_crc=crc32(state),
                placements={
                    name: text for name, text in mine.sharding.chosen.items() if text != "rows"
                },
            )
            if version is not None:
                # Valid once CHECKPOINT names the part: until then the part has no such version.
                manifest.write(version_file(self.folder, epoch))
            manifest.save(self.folder)
            return manifest

        self._manifest = self._ranks.gather(self._together(write))[0]
        self._together(mine.commit)
        if self._ranks.rank == 0:
            self._clear()
        return number

    def to_push(
        self, url: str, *, keep: int = 3, files: Mapping[str, Path] | None = None
    ) -> PushOfRanks:
        """The copy of the last checkpoint to a URL: call its `run`, on every rank, here or in another thread.

        Each rank copies its own part. `rowmill.distributed.restore_ranks` makes a folder of a checkpoint at the URL.

        Args:
            url: As of `Store.push`, for this run alone.
            keep: Number of checkpoints to keep there.
            files: Further files of the folder that belong to the checkpoint, by name.

        Raises:
            InvalidInput: There is no checkpoint yet.
        """
        manifest = self._manifest
        if manifest is None:
            raise InvalidInput("there is no checkpoint to push: call save() first")
        # The next save removes the file, which stays readable while it is open.
        first = self._ranks.rank == 0
        state = state_file(self.folder, manifest.number).open("rb") if first else None
        return PushOfRanks(manifest, state, files or {}, url=url, keep=keep)

    def restore(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        adapted: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> Any:
        """Restore everything but rows from the last checkpoint: dense weights, optimizer and random stream.

        The random stream is restored only if the number of ranks is unchanged. Call it after all tables were created.

        Args:
            model: The dense model.
            optimizer: Optimizer of the dense weights.
            adapted: Called with what was saved as "model" and "optimizer", returns what to load. The run may then have
                further tables.

        Returns:
            The saved position; None if there is no checkpoint.

        Raises:
            InvalidInput: On every rank, if the checkpoint is of another model.
        """
        manifest = self._manifest
        if manifest is None:
            return None
        mine = self._opened()

        def load() -> None:
            names, known = set(mine.table_names()), set(manifest.tables)
            other = names ^ known if adapted is None else known - names
            if other:
                raise InvalidInput(
                    f"the checkpoint in {self.folder} is of another model: it has tables {sorted(manifest.tables)}, "
                    f"this run has {mine.table_names()}; create the same tables, or use another folder"
                )
            state = saved_state(self.folder, manifest)
            if adapted is not None:
                state = {**state, **adapted(state)}
            try:
                if model is not None:
                    load_dense_state_dict(_dense(model), state["model"])
                if optimizer is not None:
                    optimizer.load_state_dict(state["optimizer"])
            except (RuntimeError, ValueError, TypeError, KeyError) as error:
                what = " ".join(str(error).split())
                raise InvalidInput(
                    f"the checkpoint in {self.folder} is of another model: {what}; create the same model and optimizer, or "
                    "use another folder"
                ) from error
            if len(manifest.epochs) == self._ranks.count:
                torch.set_rng_state(state["random"][self._ranks.rank])

        self._together(load)
        return manifest.position

    # Parts.

    def _sharding(self, manifest: Manifest | None, setting: PlacementSetting | None) -> Sharding:
        """The placements of tables, as far as they are known."""
        if setting is not None:
            check_placements(setting)
        if manifest is None:
            return Sharding(setting, kept=True)
        known = {name: manifest.placements.get(name, "rows") for name in manifest.tables}
        found = placements(setting, manifest.tables, self._ranks.count, known)
        chosen = {name: str(placement) for name, placement in found.items()}
        return Sharding(setting, chosen, kept=True)

    def _moves(self, manifest: Manifest, sharding: Sharding) -> bool:
        """Whether rows move to other ranks before this run begins."""
        ranks = self._ranks.count
        return len(manifest.epochs) != ranks or any(
            placement_in(text, ranks).keeps
            != placement_in(manifest.placements.get(name, "rows"), ranks).keeps
            for name, text in sharding.chosen.items()
        )

    def _check_sizes(self, manifest: Manifest, alter: Mapping[str, TableRules]) -> None:
        """Raise on every rank if tables get another number of ids: rows move with the number that the checkpoint has."""
        ranks = self._ranks.count

        def look() -> None:
            tables = self._changes(manifest, 0, manifest.epochs[0]).tables()
            sizes = {table["name"]: table["dense_rows"] for table in tables}
            grown = [
                name for name, of in alter.items() if sizes.get(name, of.num_rows) != of.num_rows
            ]
            if grown:
                raise InvalidInput(
                    f"the number of ids of table {grown[0]!r} changes, and its rows would also move to other ranks, from "
                    f"{len(manifest.epochs)} to {ranks} or by another placement: continue with the ranks and placements of the "
                    "checkpoint, then resume with others"
                )

        self._together(look)

    def _check_room(self, manifest: Manifest, sharding: Sharding, memory: int | str) -> None:
        """Raise on every rank, before a row moves, if a rank lacks memory or disk for the rows that it keeps now."""

        def look() -> list[TableLoad]:
            # One rank reads the parts, because each is opened for it.
            parts = manifest.epochs if self._ranks.rank == 0 else []
            copied = {name for name, of in manifest.placements.items() if of == "replicated"}
            return rows_of(
                spec
                for number, epoch in enumerate(parts)
                for spec in self._changes(manifest, number, epoch).tables()
                if number == 0 or spec["name"] not in copied
            )

        rows, ranks = self._together(look), self._ranks.count
        room = self._together(lambda: (parse_size(memory), disk_of(self.folder)))
        said = self._ranks.gather((rows, *room))
        placed = {name: placement_in(text, ranks) for name, text in sharding.chosen.items()}
        check_room(said[0][0], placed, [of for _, of, _ in said], [of for _, _, of in said])

    def _changes(self, manifest: Manifest, number: int, epoch: int) -> _core.Changes:
        """All rows of the part of a rank."""
        folder = part_folder(self.folder, manifest.generation, number)
        try:
            return _core.Changes.open(str(folder), 0, epoch)
        except StoreMissing as error:
            raise self._lacks(number, folder) from error

    def _open_part(self, seed: int, sharding: Sharding, options: dict[str, Any]) -> Store:
        manifest, rank = self._manifest, self._ranks.rank
        if manifest is None:
            self._generation = 1
            part = store.open(part_folder(self.folder, 1, rank), at=0, seed=seed, **options)
        elif self._moves(manifest, sharding):
            self._generation = manifest.generation + 1
            # Opening at 0 discards a part that an earlier run prepared here without writing its manifest.
            folder = part_folder(self.folder, self._generation, rank)
            part = store.open(folder, at=0, seed=manifest.seed, **options)
        else:
            self._generation = manifest.generation
            folder = part_folder(self.folder, manifest.generation, rank)
            try:
                part = store.open(folder, at=manifest.epochs[rank], create=False, **options)
            except StoreMissing as error:
                raise self._lacks(rank, folder) from error
            try:
                self._check_part(manifest, rank, part.attachment(PART))
            except Exception:
                part.close()
                raise
        part.sharding = sharding
        return part

    def _fill(self, mine: Store) -> Store:
        """Read the rows that this rank keeps now, if they were kept by other ranks."""
        manifest, ranks = self._manifest, self._ranks
        if manifest is None or self._generation == manifest.generation:
            return mine
        for number, epoch in enumerate(manifest.epochs):
            part = self._changes(manifest, number, epoch)
            self._check_part(manifest, number, part.attachment(PART))
            counters = number % ranks.count == ranks.rank
            keepers = {
                name: ("copied", 0)
                if number > 0 and manifest.placements.get(name) == "replicated"
                else _keeper(name, text)
                for name, text in mine.sharding.chosen.items()
            }
            part.replay_share(mine.core, ranks.rank, ranks.count, counters, keepers)
        return mine

    def _check_part(self, manifest: Manifest, rank: int, carried: bytes | None) -> None:
        said = None if carried is None else json.loads(carried)
        if said != {"id": manifest.id, "rank": rank}:
            folder = part_folder(self.folder, manifest.generation, rank)
            raise CheckpointMissing(
                f"{folder} is not a part of checkpoint {manifest.number} in {self.folder}: it belongs to {said}, but parts "
                "and CHECKPOINT must come from one run; restore the whole folder from a copy"
            )

    def _lacks(self, rank: int, folder: Path) -> CheckpointMissing:
        return CheckpointMissing(
            f"checkpoint {self.number} in {self.folder} lacks the part of rank {rank}, {folder}: put it back, or "
            "restore the whole folder from a copy"
        )

    # Files.

    def _take_lock(self, run: str) -> None:
        """Lock the folder for the lifetime of this object, and write this run's id into the lock file."""
        if self._lock is None:
            self._lock = take_lock(self.folder)
        with (self.folder / "LOCK").open("r+b", buffering=0) as file:
            file.truncate(0)
            file.write(run.encode())
            os.fsync(file.fileno())

    def _check_folder(self) -> None:
        """Raise if this rank's folder is not the one that rank 0 locked, even if the paths are equal."""
        lock = self.folder / "LOCK"
        if not lock.exists() or lock.read_text() != self._run:
            raise InvalidInput(
                f"{self.folder} is not the folder of rank 0: its LOCK lacks the id that rank 0 wrote; give all ranks "
                "one shared folder"
            )

    def _clear(self) -> None:
        """Remove states, parts and versions that are not kept, and those of checkpoints that were never complete."""
        manifest = self._manifest
        assert manifest is not None
        parts = self.folder / f"parts-{manifest.generation}"
        kept = {parts, state_file(self.folder, manifest.number)}
        for epoch, _ in self._opened().core.kept_versions():
            version = Manifest.read(version_file(self.folder, epoch))
            if version is not None:
                kept |= {version_file(self.folder, epoch), state_file(self.folder, version.number)}
        for path in (*self.folder.iterdir(), *parts.iterdir()):
            named = path in kept
            if path.parent == parts:
                named = not path.name.isdigit() or int(path.name) < len(manifest.epochs)
            elif re.fullmatch(_CLEARED, path.name) is None:
                continue
            if named:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    # Together.

    def _opened(self) -> Store:
        if self._store is None:
            raise InvalidInput("the checkpoint is not open: call open() first")
        return self._store

    def _together(self, work: Callable[[], _T]) -> _T:
        """Run `work` on every rank; every rank raises if one does."""
        (done,) = self._ranks.agree(lambda: ((work(),), {}), "the checkpoint")
        return done


def _keeper(name: str, text: str) -> tuple[str, int]:
    """Which ranks take the rows of a table, as `Changes.replay_share` takes it."""
    if text == "replicated":
        return "every", 0
    _, _, rank = text.partition(":")
    return ("rank", int(rank)) if rank else ("hash", category_of(name))


def saved_state(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """What a checkpoint holds beside its rows: "model", "optimizer" and "random", on the CPU.

    Raises:
        CheckpointMissing: The file is missing.
        StoreCorrupt: The file is damaged.
    """
    path = state_file(folder, manifest.number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointMissing(
            f"checkpoint {manifest.number} in {folder} lacks {path.name}: restore the whole folder from a copy"
        ) from None
    if (len(content), crc32(content)) != (manifest.state_bytes, manifest.state_crc):
        raise StoreCorrupt(
            f"{path} is damaged: it does not match its checksum in CHECKPOINT; restore the whole folder from a copy"
        )
    # Load to the CPU, so that a checkpoint saved with GPUs opens without; loading then copies to the model's device.
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def part_folder(folder: Path, generation: int, rank: int) -> Path:
    """The folder of the store of a rank."""
    return folder / f"parts-{generation}" / str(rank)


def state_file(folder: Path, number: int) -> Path:
    """The file with everything beside the rows of a checkpoint."""
    return folder / f"state-{number}.pt"


def version_file(folder: Path, epoch: int) -> Path:
    """The manifest of a version, by the epoch of rank 0's store."""
    return folder / f"version-{epoch}.json"


def take_lock(folder: Path) -> _core.FolderLock:
    """Lock a folder against other runs until the lock is released or garbage-collected.

    Raises:
        StoreLocked: Another run has the lock.
    """
    try:
        return _core.FolderLock.take(str(folder))
    except StoreLocked:
        raise StoreLocked(
            f"another run has locked {folder}: end it, or use another folder"
        ) from None


def pack_state(state: Mapping[str, Any]) -> bytes:
    """The content of a state file, as `saved_state` returns it."""
    torch.save(dict(state), buffer := io.BytesIO())
    return buffer.getvalue()


def _packed(
    model: nn.Module | None, optimizer: torch.optim.Optimizer | None, random: list[torch.Tensor]
) -> bytes:
    return pack_state(
        {
            "model": None if model is None else dense_state_dict(_dense(model)),
            "optimizer": None if optimizer is None else optimizer.state_dict(),
            "random": random,
        }
    )


def _dense(model: nn.Module) -> nn.Module:
    """The model without its `DistributedDataParallel` wrapper."""
    return cast("nn.Module", model.module) if isinstance(model, DistributedDataParallel) else model


def _json(position: Any) -> str:
    try:
        return json.dumps(position, sort_keys=True)
    except TypeError as error:
        raise InvalidInput(
            f"position must be numbers, strings, lists or dicts, got {position!r}: {error}"
        ) from None
