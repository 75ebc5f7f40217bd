"""The room that the rows of a checkpoint need on each rank, checked before any row moves."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rowmill import store
from rowmill.distributed.cost import Costs, Room, Speeds, TableLoad
from rowmill.optim.specs import optimizer_from_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rowmill.distributed.placement import Placement

Disk = tuple[tuple[str, int], int]
"""The machine and the file system of a folder, and its free bytes."""

INDEX_BYTES = 16
"""Least bytes of index memory per row of a table of any ids."""
_SCRATCH_MEMORY = "64MiB"


def disk_of(folder: Path) -> Disk:
    """The disk of a folder, or of the first folder above it that exists."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    found = os.statvfs(there)
    return (socket.gethostname(), there.stat().st_dev), found.f_bavail * found.f_frsize


def shared(disks: Sequence[Disk | None]) -> list[int | None]:
    """The free bytes for each rank; ranks with one file system share it. None: not known."""
    used = [None if disk is None else disk[0] for disk in disks]
    return [None if disk is None else disk[1] // used.count(disk[0]) for disk in disks]


def rows_of(tables: Iterable[Mapping[str, Any]]) -> list[TableLoad]:
    """What rows of these tables, given as by `Changes.tables`, take on disk and in the index."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(store.open(folder, memory=_SCRATCH_MEMORY)) as scratch,
    ):
        found: list[TableLoad] = []
        for spec in tables:
            # Of any ids: an index of `num_rows` would be allocated.
            table = scratch.table(
                spec["name"],
                dim=spec["dim"],
                dtype=spec["dtype"],
                optimizer=optimizer_from_dict(spec["optimizer"]),
            )
            load = TableLoad(
                table.name,
                table.dim,
                bags=0,
                ids=0,
                distinct=0,
                rows=spec["rows"],
                row_bytes=table.core.row_bytes,
                # An index of `num_rows` is as large on every rank, and checked when its table is made.
                index_bytes=INDEX_BYTES if spec["dense_rows"] is None else 0,
            )
            found.append(load)
        return found


def check_room(
    rows: Iterable[TableLoad],
    placed: Mapping[str, Placement],
    memories: Sequence[int],
    disks: Sequence[Disk],
) -> None:
    """Raise `InvalidInput`, which names the rank, if these rows exceed the memory or disk of a rank.

    Args:
        rows: As by `rows_of`, for every part; of a replicated table one part only.
        placed: The placement of every table.
        memories: Memory budget of the store of every rank.
        disks: The disk of every rank.
    """
    rooms = [Room(*of) for of in zip(memories, shared(disks), strict=True)]
    costs = Costs(len(rooms), rooms, Speeds(), "fp32")
    for load in rows:
        costs.add(load, placed[load.name])
    costs.check_room(placed)
