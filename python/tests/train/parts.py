"""A click log in parts, one file each, and runs that train on them: one part after the other, or on all in one run."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import rowmill
from python.tests.train import runs
from python.tests.train.test_exactly_once import all_rows, bits
from rowmill.ctr import task
from rowmill.ctr.data import batches
from rowmill.distributed import Manifest, saved_state
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# pyarrow has no types for these calls.
_arrow: Any = pa


def split(log: Path, folder: Path, sizes: list[int]) -> list[Path]:
    """Write the first rows of a log as files of these sizes, whose names sort in their order."""
    files = sorted(log.glob("*.parquet"))
    table = _arrow.concat_tables([pq.read_table(file) for file in files])
    folder.mkdir(parents=True)
    written: list[Path] = []
    for number, size in enumerate(sizes):
        written.append(folder / f"part-{number:03}.parquet")
        pq.write_table(table.slice(sum(sizes[:number]), size), written[-1])
    return written


def train_on_all(
    arguments: list[str], printed: Path, environment: Mapping[str, str], sizes: list[int]
) -> None:
    """As `runs.command`, for a run on a log of parts: a batch ends where a part ends."""
    ends = list(itertools.accumulate(sizes))

    def in_parts(source: Any, way: Any, *, start: int, stop: int, batch: int) -> Iterator[Any]:
        for end in ends:
            if start < end <= stop:
                yield from batches(source, way, start=start, stop=end, batch=batch)
                start = end

    task.batches = in_parts
    runs.command(arguments, printed, environment, None)


def left(out: Path) -> dict[str, Any]:
    """Everything of a run that further training depends on: rows, dense weights, optimizer, random streams."""
    manifest = Manifest.load(out / "store")
    if manifest is None:
        with rowmill.open(out / "store", read_only=True) as store:
            packed = store.attachment(ATTACHMENT)
            assert packed is not None
            content = torch.load(io.BytesIO(packed), weights_only=True)
            dense = {name: content[name] for name in ("model", "optimizer", "random")}
            return {"dense": bits(dense), "tables": _tables(store)}
    found = {"dense": bits(saved_state(out / "store", manifest))}
    for rank, epoch in enumerate(manifest.epochs):
        part = out / "store" / f"parts-{manifest.generation}" / str(rank)
        with rowmill.open(part, read_only=True, at=epoch) as store:
            found[f"tables of rank {rank}"] = _tables(store)
    return found


def _tables(store: rowmill.Store) -> dict[str, Any]:
    tables = store.stats()["tables"]
    counted = ("rows", "steps", "accesses", "births")
    return {
        name: ({key: tables[name][key] for key in counted}, all_rows(store.open_table(name)))
        for name in store.table_names()
    }
