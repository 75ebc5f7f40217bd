"""Jobs of a rank that compare placements of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import rowmill
from python.tests.distributed.tables import batch_of, open_tables, part_of
from rowmill import RaggedBatch
from rowmill.distributed import Ranks, Room, ShardedCollection, plan_of_ranks
from rowmill.errors import InvalidInput
from rowmill.nn import Feature

if TYPE_CHECKING:
    from pathlib import Path


def bags(
    ranks: Ranks, folder: Path, tables: int, dim: int, ids: int, samples: int, **settings: Any
) -> dict[str, int]:
    """One step on long bags; returns the bytes that this rank sent."""
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="64MiB", threads=1, seed=7)
    sgd = rowmill.optim.SGD(lr=0.1)
    features = [
        Feature(f"t{n}", store.table(f"t{n}", dim=dim, optimizer=sgd)) for n in range(tables)
    ]
    collection = ShardedCollection(features, ranks=ranks, **settings)
    random = torch.Generator().manual_seed(ranks.rank)
    values = torch.randint(2**40, (tables * samples * ids,), generator=random)
    offsets = torch.arange(0, len(values) + 1, ids)
    batch = RaggedBatch(tuple(feature.name for feature in features), values, offsets)
    collection(batch).sum().backward()
    sent = dict(collection.traffic.bytes_sent)
    store.close()
    return {str(leg): count for leg, count in sent.items()}


def placed_weights(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Pooled vectors and later rows with weights of ids, for several placements; some ranks have no weights."""
    found: dict[str, Any] = {}
    for placement in ("rows", "pooled", "whole", "replicated", "mixed"):
        setting = "user=pooled,tag=whole:1,shop=replicated" if placement == "mixed" else placement
        at = folder / placement
        at.mkdir(exist_ok=True)
        store, features = open_tables(at, ranks.rank)
        features = [
            Feature(feature.name, feature.table, "sum", feature.padding_idx) for feature in features
        ]
        collection = ShardedCollection(features, ranks=ranks, placement=setting)
        seen: list[Any] = []
        for step in range(6):
            batch, _ = part_of(*batch_of(step, features), ranks.rank, ranks.count)
            weights = torch.linspace(-1.0, 2.0, len(batch.values)) if ranks.rank > 0 else None
            batch = RaggedBatch(batch.features, batch.values, batch.offsets, weights)
            pooled = collection(batch)
            pooled.square().sum().backward()
            seen += pooled.detach().flatten().tolist()
        found[placement] = [seen]
        if placement == "pooled":
            batch, _ = part_of(*batch_of(0, features), ranks.rank, ranks.count)
            weights = torch.ones(len(batch.values), requires_grad=True)
            try:
                collection(RaggedBatch(batch.features, batch.values, batch.offsets, weights))
            except InvalidInput as error:
                found["refused"] = str(error)
        store.close()
    return found


def planned_bags(
    ranks: Ranks, folder: Path, tables: int, dim: int, ids: int, samples: int
) -> dict[str, Any]:
    """A step with planned placements, one with the same fixed by hand, and two plans that are refused."""
    random = torch.Generator().manual_seed(ranks.rank)
    values = torch.randint(1000, (tables * samples * ids,), generator=random)
    names = tuple(f"t{n}" for n in range(tables))
    batch = RaggedBatch(names, values, torch.arange(0, len(values) + 1, ids))
    sgd = rowmill.optim.SGD(lr=0.1)

    def opened(of: str) -> tuple[Any, list[Feature]]:
        store = rowmill.open(folder / of / f"store-{ranks.rank}", memory="64MiB", threads=1, seed=7)
        made = [store.table(name, dim=dim, optimizer=sgd, num_rows=1000) for name in names]
        return store, [Feature(table.name, table) for table in made]

    store, features = opened("planned")
    plan = plan_of_ranks(features, [batch], ranks=ranks)
    refusals: list[str] = []
    for fixed, room in (
        (("rows", "pooled")[ranks.rank], None),
        (None, (None, Room(disk_bytes=1))[ranks.rank]),
    ):
        try:
            plan_of_ranks(features, [batch], ranks=ranks, fixed=fixed, room=room)
        except InvalidInput as error:
            refusals.append(str(error))
    found: dict[str, Any] = {
        "placement": plan.placement,
        "bytes": sum(choice.bytes[choice.placement.kind] for choice in plan.choices),
        "refused": refusals[0],
        "short": refusals[1],
    }
    collection = ShardedCollection(features, ranks=ranks, placement=plan.placement)
    vectors = collection(batch)
    vectors.sum().backward()
    found["vectors"] = vectors.flatten().tolist()
    found["sent"] = {str(leg): count for leg, count in collection.traffic.bytes_sent.items()}
    store.close()

    store, features = opened("fixed")
    by_hand = ",".join(f"{name}={of}" for name, of in plan.placement.items())
    vectors = ShardedCollection(features, ranks=ranks, placement=by_hand)(batch)
    vectors.sum().backward()
    found["vectors_fixed"] = vectors.flatten().tolist()
    store.close()
    return found
