"""Jobs of a rank whose placements are planned from its first batches."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

import rowmill
from rowmill import RaggedBatch
from rowmill.distributed import Checkpoint, Pipeline, RowCache, ShardedCollection, Speeds
from rowmill.distributed import auto as planning
from rowmill.nn import Feature

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rowmill.distributed import Ranks
    from rowmill.store import Store

NAMES = ("t0", "t1", "t2", "t3", "single")
_IDS, _SAMPLES, _ROWS = 30, 32, 1000


def features_of(store: Store) -> list[Feature]:
    """Four tables with long bags, and one with single ids."""
    sgd = rowmill.optim.SGD(lr=0.1)
    return [
        Feature(name, store.table(name, dim=16, optimizer=sgd, num_rows=_ROWS)) for name in NAMES
    ]


def batch_of(ranks: Ranks, step: int, samples: int = _SAMPLES) -> RaggedBatch:
    """A batch of this rank."""
    random = torch.Generator().manual_seed(step * ranks.count + ranks.rank)
    lengths = torch.tensor([_IDS] * (4 * samples) + [1] * samples)
    values = torch.randint(_ROWS, (int(lengths.sum()),), generator=random)
    return RaggedBatch.from_lengths(NAMES, values, lengths.view(len(NAMES), samples))


def auto_placed(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Placements that several programs plan, by name, and losses of those that train alike."""
    found: dict[str, Any] = {}

    def opened(name: str, **settings: Any) -> Any:
        checkpoint = Checkpoint(folder / name, ranks=ranks)
        return checkpoint, closing(checkpoint.open(memory="32MiB", threads=1, seed=7, **settings))

    def steps(rows: ShardedCollection, depth: int, of: range) -> list[float]:
        coming: Any = ((batch_of(ranks, step), None) for step in of)
        coming = Pipeline(rows, depth=depth).run(coming) if depth else coming
        losses: list[float] = []
        for batch, _ in coming:
            loss = rows(batch).square().mean()
            loss.backward()
            losses.append(loss.item())
        return losses

    for depth in (0, 1, 3):
        checkpoint, store = opened(f"depth {depth}")
        with store as mine:
            rows = ShardedCollection(features_of(mine), ranks=ranks)
            unplaced = rows.unplaced
            losses = steps(rows, depth, range(6))
            found[f"depth {depth}"] = [unplaced, rows.placements, losses]
            checkpoint.save()
            found["after"] = steps(rows, 0, range(6, 8))
            second = ShardedCollection(features_of(mine), ranks=ranks)
            found["second"] = second.placements
    del checkpoint  # It holds the lock of the folder.
    _, store = opened("depth 3", placement="auto")
    with store as mine:
        rows = ShardedCollection(features_of(mine), ranks=ranks)
        found["resumed"] = [rows.unplaced, rows.placements, steps(rows, 0, range(6, 8))]

    def planned(name: str, of: Callable[[Store], Any], **settings: Any) -> None:
        with opened(name, **settings)[1] as mine:
            found[name] = of(mine)

    def first(mine: Store, batch: RaggedBatch | None = None, **settings: Any) -> dict[str, str]:
        rows = ShardedCollection(features_of(mine), ranks=ranks, **settings)
        rows(batch_of(ranks, 0) if batch is None else batch)
        return rows.placements

    def written(mine: Store) -> dict[str, str]:
        if ranks.rank == 1:
            features_of(mine)[1].table.put(torch.tensor([4]), torch.ones(1, 16))
        return first(mine)

    def weighted(mine: Store) -> dict[str, str]:
        batch = batch_of(ranks, 0)
        weights = torch.ones(len(batch.values), requires_grad=ranks.rank == 1)
        return first(mine, RaggedBatch(batch.features, batch.values, batch.offsets, weights))

    def other_speeds(mine: Store) -> str:
        try:
            first(mine, speeds=Speeds(link_bytes_per_s=1e9 * (1 + ranks.rank)))
        except rowmill.errors.InvalidInput as error:
            return str(error)
        return ""

    def cached(mine: Store) -> dict[str, str]:
        rows = ShardedCollection(features_of(mine), ranks=ranks).eval()
        evaluated = Pipeline(rows, row_cache=RowCache(ahead=1, memory="1MiB"))
        for batch, _ in evaluated.run([(batch_of(ranks, step), None) for step in range(2)]):
            rows(batch)
        return rows.placements

    def late(mine: Store) -> list[Any]:
        rows = ShardedCollection(features_of(mine), ranks=ranks)
        rows(batch_of(ranks, 0, samples=0))
        said = [rows.unplaced]
        try:
            rows(batch_of(ranks, 0) if ranks.rank == 0 else None)
        except rowmill.errors.InvalidInput as error:
            said += [str(error), rows.unplaced]
        rows(batch_of(ranks, 0))
        return [*said, rows.unplaced]

    planned("by hand", first, placement="auto,t0=rows,t1=whole:1")
    planned("in Python", lambda mine: first(mine, placement={"t0": "pooled", "t1": "auto"}))
    planned("narrow", lambda mine: first(mine, rows_on_wire="bf16"))
    planned("other speeds", other_speeds)
    planned("source-hash", lambda mine: first(mine, strategy="source-hash"))
    planned("written", written)
    planned("weighted", weighted)
    planned("cached", cached)
    planned("late", late)
    with closing(rowmill.open(folder / f"plain-{ranks.rank}", memory="32MiB", seed=7)) as mine:
        found["plain"] = first(mine)
    return found


def without_room(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Placements and errors where the disk of rank 1 is full."""
    found: dict[str, Any] = {}
    disk_of = planning.disk_of
    host = f"host {ranks.rank}"

    def full(_: Path) -> tuple[tuple[str, int], int]:
        return (host, 0), (10**12, 1000)[ranks.rank]

    planning.disk_of = full
    try:
        for name, placement in (("chosen", "auto"), ("fixed", "auto,t2=whole:1")):
            checkpoint = Checkpoint(folder / name, ranks=ranks)
            with closing(checkpoint.open(memory="32MiB", placement=placement)) as mine:
                rows = ShardedCollection(features_of(mine), ranks=ranks)
                try:
                    rows(batch_of(ranks, 0))
                    found[name] = rows.placements
                except rowmill.errors.InvalidInput as error:
                    found[name] = str(error)
    finally:
        planning.disk_of = disk_of
    return found
