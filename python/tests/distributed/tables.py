"""The tables, batches and rows of tests on many ranks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import rowmill
from rowmill import TTL, MinCount, RaggedBatch
from rowmill.nn import Feature

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 600.0
"""Deadline for a row that another step holds. Hangs are found by the timeout of ranks or of the test instead."""

EXTREMES = [2**63 - 1, -(2**63), -1, 2**31]


def open_tables(
    folder: Path, rank: int, bound: int | None = 0, rules: bool = False
) -> tuple[rowmill.Store, list[Feature]]:
    """Create a rank's store, and features over its tables."""
    # The long deadline keeps a suspended machine from looking like a row that is never released.
    store = rowmill.open(
        folder / f"store-{rank}", memory="32MiB", threads=1, seed=7, wait_deadline_s=WAIT_S
    )
    return store, tables_of(store, bound, rules)


def tables_of(store: rowmill.Store, bound: int | None = 0, rules: bool = False) -> list[Feature]:
    """Features of three dims and four specs, with sum and mean pooling; two of them share a table."""
    sgd, adagrad = rowmill.optim.SGD(lr=0.1), rowmill.optim.RowwiseAdagrad(lr=0.05)
    make = partial(store.table, staleness_bound=bound)
    if rules:  # Admit ids at their second lookup; evict rows after 6 steps without lookup.
        make = partial(make, admission=MinCount(2), eviction=TTL(steps=6, every=2))
    tables = [
        make("user", dim=8, optimizer=sgd),
        make("item", dim=4, optimizer=adagrad),
        make("shop", dim=8, optimizer=sgd, num_rows=50),
        make("word", dim=4, optimizer=adagrad),
        make("tag", dim=16, optimizer=rowmill.optim.Adam(lr=0.01)),
        make("colour", dim=4, optimizer=sgd),
    ]
    features = [Feature(table.name, table) for table in tables[:3]]
    features += [
        Feature("words", tables[3], pooling="mean", padding_idx=0),
        Feature("title", tables[3], padding_idx=0),
        Feature("tag", tables[4], pooling="mean"),
        Feature("colour", tables[5]),
    ]
    return features


def batch_of(step: int, features: list[Feature]) -> tuple[RaggedBatch, Tensor]:
    """The batch of all ranks. Its size differs between steps, and may be below the number of ranks."""
    random = torch.Generator().manual_seed(step)
    size = (13, 3, 1, 8, 22)[step % 5]
    bags: dict[str, list[list[int]]] = {}
    for feature in features:
        most = 50 if feature.table.num_rows else 200
        lengths = torch.randint(0, 4, (size,), generator=random).tolist()
        if feature.name == "colour" and step % 3 == 0:  # A category without ids.
            lengths = [0] * size
        bags[feature.name] = [
            (torch.rand(n, generator=random) ** 3 * most).long().tolist() for n in lengths
        ]
        if feature.name == "user":  # An id in every sample, and so on every rank.
            bags["user"] = [[5, *ids] for ids in bags["user"]]
            bags["user"][0] += EXTREMES
    labels = (torch.rand(size, generator=random) < 0.3).float()
    return RaggedBatch.from_lists(bags), labels


def part_of(
    batch: RaggedBatch, labels: Tensor, rank: int, count: int
) -> tuple[RaggedBatch, Tensor]:
    """The samples of one rank: equal shares, except that the last ranks may have fewer or none."""
    share = -(-len(labels) // count)
    begin, end = min(rank * share, len(labels)), min((rank + 1) * share, len(labels))
    bags: dict[str, list[list[int]]] = {}
    for name in batch.features:
        ids, ends = batch.bags(name)
        bags[name] = [ids[ends[b] : ends[b + 1]].tolist() for b in range(begin, end)]
    return RaggedBatch.from_lists(bags), labels[begin:end]


def rows_of(features: list[Feature]) -> dict[str, list[Any]]:
    """Per table, the ids and weights of this rank's rows."""
    ids = torch.tensor([*range(200), *EXTREMES])
    rows: dict[str, list[Any]] = {}
    for table in {feature.table for feature in features}:
        known = torch.arange(table.num_rows) if table.num_rows else ids
        has = table.contains(known)
        rows[table.name] = [known[has].tolist(), table.get(known[has]).tolist()]
    return rows


def counts_of(store: rowmill.Store) -> dict[str, dict[str, int]]:
    """Counters of the store, per table."""
    tables = store.stats()["tables"]
    what = ("accesses", "births", "evicted", "steps")
    return {name: {one: tables[name][one] for one in what} for name in tables}
