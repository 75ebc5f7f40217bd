"""A checkpoint of a run of `rowmill train`, of any task, read without its training data.

RUN is the folder given to `--out`, or the folder of its rows: `--store`, or a folder that `rowmill restore` has made. The
checkpoint is the last one or a version, of one process or of many ranks. The run may be training.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch

import rowmill
from rowmill import _core
from rowmill.config.config import Config, section_from
from rowmill.config.setting import ConfigError
from rowmill.distributed import CHECKPOINT_FILE, checkpoint_of_ranks, saved_state, versions_of_ranks
from rowmill.errors import CheckpointMissing
from rowmill.optim import SGD
from rowmill.optim.specs import initializer_from_dict
from rowmill.store.changes import Changes
from rowmill.store.versions import versions
from rowmill.train.run_files import files_of, read_run_file
from rowmill.train.state import ATTACHMENT, RunState, unpacked
from rowmill.train.versions import lower_is_better

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill.store import Store

BEST = "best"
"""In place of the name of a version: the one with the best metric of `checkpoint.best`."""
_CHUNK_ROWS = 16_384
_DEFAULT_MEMORY = "2GiB"
"""Memory to open a version with, if the last checkpoint does not say what its run had."""


@dataclass(frozen=True)
class Rows:
    """The rows of a checkpoint in one folder of a store.

    Attributes:
        folder: The folder.
        at: Number of the last checkpoint in it.
        version: Number of the version to read; None: the last checkpoint.
    """

    folder: Path
    at: int
    version: int | None

    def open(self, memory: int | str) -> Store:
        """The store, read-only, at this checkpoint."""
        at = self.at if self.version is None else None
        return rowmill.open(self.folder, memory=memory, read_only=True, at=at, version=self.version)


@dataclass(frozen=True)
class NodeRows:
    """Rows of a storage node that was filled from a run.

    Attributes:
        url: `nvme+tcp://HOST:PORT/NQN`.
        access: TOML file with name and keys of this host, as for `rowmill.open`.
    """

    url: str
    access: Path | None = None


class SavedRun:
    """A checkpoint of a run. Use it in a `with` block, or call `close`.

    Attributes:
        folder: The folder of its rows.
        out: The folder of the run; None if RUN was the folder of its rows alone.
        config: The settings of the run.
        identity: Settings and properties of the data that are equal when the run resumes.
        state: Position and measurements.
        weights: Dense weights by name.
        parts: The rows: in one store, or in one of each rank.
        of_ranks: Whether many ranks wrote it.
        replicated: Tables of which every rank has all rows.
        memory: Memory budget for reading rows.
    """

    def __init__(
        self,
        run: Path,
        folder: Path,
        described: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        parts: tuple[Rows, ...],
        *,
        of_ranks: bool,
        replicated: Collection[str],
        memory: int | str | None,
        scratch: Path | None,
        node: NodeRows | None = None,
    ) -> None:
        self.folder = folder
        self.out = run if folder != run else None
        self._files = files_of(described)
        if "config" not in self._files:
            raise CheckpointMissing(
                f"the checkpoint in {folder} names no settings, because an earlier version wrote it, or a program other "
                "than `rowmill train`: run the command that trained it again with --resume, and with a larger "
                "--epochs if it was complete, then use its next checkpoint"
            )
        self.config = _config(self.file("config"))
        self.identity: dict[str, Any] = json.loads(described["identity"])
        self.state = RunState.from_json(described["state"])
        self.weights = weights
        self.parts = parts
        self.of_ranks = of_ranks
        self.replicated = replicated
        self.memory = memory or self.config.store.memory
        self._scratch = scratch
        self._node = node
        self._merged: Path | None = None

    @classmethod
    def open(
        cls,
        run: Path,
        *,
        version: str | int | None = None,
        memory: int | str | None = None,
        scratch: Path | None = None,
        node: NodeRows | None = None,
    ) -> Self:
        """Open a checkpoint of a run.

        Args:
            run: The folder of the run, or of its rows.
            version: Name or number of a version, or "best": the one with the best `checkpoint.best`; None: the last checkpoint.
            memory: Memory budget for reading rows; None: `store.memory` of the run.
            scratch: Folder for a merged copy of the rows of many ranks; None: the folder for temporary files.
            node: A storage node from which rows are read instead; None: the store of the run.

        Raises:
            CheckpointMissing: There is no checkpoint, or an older version of rowmill wrote it.
            StoreCorrupt: A file of it is damaged; names the file.
            InvalidInput: There is no such version; the message lists those that exist.
        """
        folder = folder_of_rows(run)
        of_ranks = (folder / CHECKPOINT_FILE).exists()
        if version == BEST:
            version = best_version(folder, cls.open(run).config)
        read = _of_ranks if of_ranks else _of_one
        named = None if version is None else str(version)
        described, weights, parts, replicated = read(folder, named, memory)
        return cls(
            run,
            folder,
            described,
            weights,
            parts,
            of_ranks=of_ranks,
            replicated=replicated,
            memory=memory,
            scratch=scratch,
            node=node,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the rows, and remove a merged copy of them."""
        if "store" in self.__dict__:
            self.store.close()
        if self._merged is not None:
            shutil.rmtree(self._merged, ignore_errors=True)

    def file(self, role: str) -> Any:
        """The content of a file of the run, of a text file its path; None if the run has none of this role."""
        return read_run_file(self.folder, self._files[role]) if role in self._files else None

    @cached_property
    def store(self) -> Store:
        """The rows, read-only: of one process where they are, of many ranks merged into a copy, or of a node."""
        if self._node is not None:
            return rowmill.open(self._node.url, access=self._node.access)
        if not self.of_ranks:
            return self.parts[0].open(self.memory)
        self._merged = Path(tempfile.mkdtemp(prefix=".rowmill.", dir=self._scratch))
        self.copy_rows(self._merged / "rows")
        return rowmill.open(self._merged / "rows", memory=self.memory, read_only=True)

    def specs(self) -> list[dict[str, Any]]:
        """The tables in the order of their creation: `name`, `dim`, `dtype`, `initializer`, `dense_rows` and others."""
        part = self.parts[0]
        return _core.Changes.open(str(part.folder), 0, part.at).tables()

    def rows(self) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
        """All rows once, in batches: name of the table, ids int64 `[n]`, weights float32 `[n, dim]`."""
        for number, part in enumerate(self.parts):
            for name, ids, weights in self._rows_in(part):
                if number == 0 or name not in self.replicated:
                    yield name, ids, weights

    def _rows_in(self, part: Rows) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
        if part.version is None:
            # In the order of the log, which reads it once.
            changes = Changes(_core.Changes.open(str(part.folder), 0, part.at))
            changes.batch_rows = _CHUNK_ROWS
            for batch in changes:
                if len(batch.ids):
                    yield batch.table, batch.ids, np.array(batch.weights)
        elif self.of_ranks:
            with closing(part.open(self.memory)) as store:
                yield from _scanned(store)
        else:
            yield from _scanned(self.store)

    def copy_rows(self, folder: Path) -> None:
        """Copy the weights of all rows, without optimizer state, into a new store.

        A missing row is born from seed, table and id, so the copy has the seed and the tables of the run.
        """
        seed = self.config.train.seed
        with closing(rowmill.open(folder, memory=self.memory, seed=seed)) as target:
            for table in self.specs():
                target.table(
                    table["name"],
                    dim=table["dim"],
                    dtype="fp32" if table["dtype"] == "fp32" else "bf16",
                    optimizer=SGD(lr=0.0),
                    initializer=initializer_from_dict(table["initializer"]),
                    num_rows=table["dense_rows"],
                )
            for name, ids, weights in self.rows():
                target.open_table(name).put(
                    torch.from_numpy(np.array(ids)), torch.from_numpy(np.array(weights))
                )
            target.checkpoint()


def _scanned(store: Store) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    for name in store.table_names():
        for ids, weights in store.open_table(name).scan(batch_rows=_CHUNK_ROWS):
            yield name, ids, weights


def folder_of_rows(run: Path) -> Path:
    """The folder of the rows of a run, which is given by its own folder or by this one."""
    for folder in (run / "store", run):
        if (folder / "MANIFEST").exists() or (folder / CHECKPOINT_FILE).exists():
            return folder
    if splits := sorted(path.parent.name for path in run.glob("split-*/store")):
        raise CheckpointMissing(
            f"{run} has the runs of {len(splits)} splits: give the folder of one of them, such as {run / splits[0]}"
        )
    raise CheckpointMissing(
        f"{run} has no checkpoint: give the folder of a run (--out of `rowmill train`) or of its rows (--store)"
    )


def best_version(folder: Path, config: Config) -> str:
    """The name of the version with the best `checkpoint.best`; of equal ones the oldest.

    Raises:
        ConfigError: The run keeps no best version, or none has a value yet.
    """
    best = config.checkpoint.best
    if best is None:
        raise ConfigError(
            f"version is {BEST!r}, but the run in {folder} has no checkpoint.best (--best of `rowmill train`): name a version "
            "of `rowmill versions`"
        )
    listed = versions_of_ranks if (folder / CHECKPOINT_FILE).exists() else versions
    found = [kept for kept in listed(folder) if kept["metric"] is not None]
    if not found:
        raise ConfigError(
            f"version is {BEST!r}, but no version in {folder} has a value of {best!r}: name a version of `rowmill versions`"
        )
    choose = min if lower_is_better(best) else max
    return choose(found, key=lambda kept: kept["metric"])["name"]


_Read = tuple["Mapping[str, Any]", "Mapping[str, Tensor]", tuple[Rows, ...], frozenset[str]]
"""Description, dense weights, rows, and the tables that every rank has."""


def _of_one(folder: Path, version: str | None, memory: int | str | None) -> _Read:
    changes = _core.Changes.open(str(folder), 0)
    packed, at = changes.attachment(ATTACHMENT), changes.until
    number = None
    if version is not None:
        described = {} if packed is None else unpacked(packed)
        names = files_of(described)
        if memory is None:
            config = _config(read_run_file(folder, names["config"])) if "config" in names else None
            memory = config.store.memory if config else _DEFAULT_MEMORY
        numbers = {kept["name"]: kept["number"] for kept in _core.versions(str(folder))}
        # An unknown one is refused by the store, which lists those that exist.
        given = numbers.get(version, version)
        with closing(rowmill.open(folder, memory=memory, read_only=True, version=given)) as store:
            packed = store.attachment(ATTACHMENT)
        number = int(given)
    described = {} if packed is None else unpacked(packed)
    return described, described.get("model", {}), (Rows(folder, at, number),), frozenset()


def _of_ranks(folder: Path, version: str | None, _: int | str | None) -> _Read:
    manifest, found = checkpoint_of_ranks(folder, version)
    described = cast(
        "dict[str, Any]", manifest.position if isinstance(manifest.position, dict) else {}
    )
    parts = tuple(Rows(part, at, number) for part, at, number in found)
    replicated = {name for name, of in manifest.placements.items() if of == "replicated"}
    return described, saved_state(folder, manifest)["model"], parts, frozenset(replicated)


def _config(content: dict[str, Any]) -> Config:
    sections = {name: values for name, values in content.items() if values is not None}
    return Config(**{name: section_from(name, values) for name, values in sections.items()})
