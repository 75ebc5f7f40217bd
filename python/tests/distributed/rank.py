"""One rank of the tests: a process that runs jobs it reads from its standard input.

A process serves many jobs, each with a process group of its own, for importing torch takes longer than most jobs.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import rowmill
from rowmill import RaggedBatch
from rowmill.distributed import Ranks, ShardedCollection
from rowmill.nn import EmbeddingCollection, Feature

EXTREMES = [2**63 - 1, -(2**63), -1, 2**31]


def open_tables(folder: Path, rank: int) -> tuple[rowmill.Store, list[Feature]]:
    """Features of three dims, four specs and all kinds of pooling; two of them share a table."""
    store = rowmill.open(folder / f"store-{rank}", memory="32MiB", threads=1, seed=7)
    sgd, adagrad = rowmill.optim.SGD(lr=0.1), rowmill.optim.RowwiseAdagrad(lr=0.05)
    tables = [
        store.table("user", dim=8, optimizer=sgd),
        store.table("item", dim=4, optimizer=adagrad),
        store.table("shop", dim=8, optimizer=sgd, num_rows=50),
        store.table("word", dim=4, optimizer=adagrad),
        store.table("tag", dim=16, optimizer=rowmill.optim.Adam(lr=0.01)),
        store.table("colour", dim=4, optimizer=sgd),
    ]
    features = [Feature(table.name, table) for table in tables[:3]]
    features += [
        Feature("words", tables[3], pooling="mean", padding_idx=0),
        Feature("title", tables[3], padding_idx=0),
        Feature("tag", tables[4], pooling="mean"),
        Feature("colour", tables[5]),
    ]
    return store, features


def batch_of(step: int, features: list[Feature]) -> tuple[RaggedBatch, Tensor]:
    """A batch of all ranks: its size differs from step to step, and is sometimes below that of the ranks."""
    random = torch.Generator().manual_seed(step)
    size = (13, 3, 1, 8, 22)[step % 5]
    bags: dict[str, list[list[int]]] = {}
    for feature in features:
        most = 50 if feature.table.num_rows else 200
        lengths = torch.randint(0, 4, (size,), generator=random).tolist()
        if feature.name == "colour" and step % 3 == 0:  # A category nobody asks for.
            lengths = [0] * size
        bags[feature.name] = [
            (torch.rand(n, generator=random) ** 3 * most).long().tolist() for n in lengths
        ]
        if feature.name == "user":  # An id that every sample asks for, and so every rank.
            bags["user"] = [[5, *ids] for ids in bags["user"]]
            bags["user"][0] += EXTREMES
    labels = (torch.rand(size, generator=random) < 0.3).float()
    return RaggedBatch.from_lists(bags), labels


def part_of(
    batch: RaggedBatch, labels: Tensor, rank: int, count: int
) -> tuple[RaggedBatch, Tensor]:
    """The samples of one rank: as even as they come, the last ranks have fewer or none."""
    share = -(-len(labels) // count)
    begin, end = min(rank * share, len(labels)), min((rank + 1) * share, len(labels))
    bags: dict[str, list[list[int]]] = {}
    for name in batch.features:
        ids, ends = batch.bags(name)
        bags[name] = [ids[ends[b] : ends[b + 1]].tolist() for b in range(begin, end)]
    return RaggedBatch.from_lists(bags), labels[begin:end]


def rows_of(features: list[Feature]) -> dict[str, list[Any]]:
    """Of every table the rows that this rank has."""
    ids = torch.tensor([*range(200), *EXTREMES])
    rows: dict[str, list[Any]] = {}
    for table in {feature.table for feature in features}:
        known = torch.arange(table.num_rows) if table.num_rows else ids
        has = table.contains(known)
        rows[table.name] = [known[has].tolist(), table.get(known[has]).tolist()]
    return rows


def dense(width: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1))


def alone(folder: Path, steps: int) -> dict[str, Any]:
    """The same training on one rank without an exchange."""
    store, features = open_tables(folder, 0)
    embeddings = EmbeddingCollection(features)
    model = dense(sum(embeddings.dims))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(steps):
        batch, labels = batch_of(step, features)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(embeddings(batch)).view(-1), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = rows_of(features)
    store.close()
    return {"losses": losses, "rows": rows}


def train(ranks: Ranks, folder: Path, steps: int, **settings: Any) -> dict[str, Any]:
    """Training over an exchange."""
    store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks, **settings)
    model = ranks.data_parallel(dense(sum(collection.dims)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(steps):
        batch, labels = part_of(*batch_of(step, features), ranks.rank, ranks.count)
        optimizer.zero_grad()
        logits = model(collection(batch)).view(-1)
        loss = ranks.mean(binary_cross_entropy_with_logits(logits, labels, reduction="none"))
        loss.backward()
        optimizer.step()
        losses.append(ranks.total(loss))
    rows = rows_of(features)
    collection.eval()
    before = collection.traffic.rounds_total
    evaluated = collection(part_of(*batch_of(1, features), ranks.rank, ranks.count)[0])
    assert not evaluated.requires_grad
    assert rows_of(features) == rows
    result = {
        "losses": losses,
        "rows": rows,
        "evaluated": evaluated.tolist(),
        "rounds": collection.traffic.rounds,
        "bytes": collection.traffic.bytes_sent,
        "rounds_evaluated": collection.traffic.rounds_total - before,
        "weights": [p.detach().flatten().tolist() for p in model.parameters()],
    }
    store.close()
    return result


def shared_id(ranks: Ranks, folder: Path, strategy: str) -> dict[str, Any]:
    """Every rank asks for one id and brings a gradient of its own."""
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="16MiB", threads=1)
    zeros = rowmill.init.Zeros()
    table = store.table("t", dim=2, optimizer=rowmill.optim.SGD(lr=1.0), initializer=zeros)
    collection = ShardedCollection([Feature("f", table)], ranks=ranks, strategy=strategy)
    pooled = collection(RaggedBatch.from_lists({"f": [[9, 9], [9]]}))
    (pooled * (ranks.rank + 1)).sum().backward()
    result = {"has": bool(table.contains([9])[0]), "row": table.get([9])[0].tolist()}
    store.close()
    return result


def wrong(ranks: Ranks, folder: Path, what: str) -> dict[str, Any]:
    """Bad input on the last rank; the error every rank sees, and how long it took to see it."""
    store, features = open_tables(folder, ranks.rank)
    last = ranks.rank == ranks.count - 1
    settings: dict[str, Any] = {}
    if what == "optimizer":
        sgd = rowmill.optim.SGD(lr=0.3 if last else 0.1)
        features[-1] = Feature("colour", store.table("colour2", dim=4, optimizer=sgd))
    if last and what == "strategy":
        settings["strategy"] = "fused"
    if last and what == "constructor":
        features.append(features[0])
    began = time.monotonic()
    error: Exception | None = None
    after: list[float] = []
    try:
        collection = ShardedCollection(features, ranks=ranks, **settings)
        batch, _ = part_of(*batch_of(0, features), ranks.rank, ranks.count)
        good = batch
        if last and what == "category":
            names = (*batch.features[:-1], "flavour")
            batch = RaggedBatch(names, batch.values, batch.offsets)
        if last and what == "offsets":
            batch = RaggedBatch(batch.features, batch.values[:-1], batch.offsets)
        if last and what == "falling":
            offsets = batch.offsets.clone()
            offsets[1] = offsets[2] + 1
            batch = RaggedBatch(batch.features, batch.values, offsets)
        if last and what == "range":
            ids, ends = batch.values.clone(), batch.offsets
            place = batch.features.index("shop") * batch.batch_size
            ids[ends[place] : ends[place + batch.batch_size]] = 50
            batch = RaggedBatch(batch.features, ids, batch.offsets)
        if last and what == "mode":
            collection.eval()
        if last and what == "closed":
            store.close()
        try:
            collection(batch)
        except Exception as raised:
            error = raised
            collection.train()
            if what != "closed":
                # Nothing is lost: the same collection goes on.
                collection(good).sum().backward()
                after = [1.0]
    except Exception as raised:
        error = raised
    took = time.monotonic() - began
    assert error is not None
    return {"error": type(error).__name__, "message": str(error), "s": took, "after": after}


def silent(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """The last rank never comes."""
    _store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks)
    if ranks.rank == ranks.count - 1:
        return {"error": None}
    batch, _ = part_of(*batch_of(0, features), ranks.rank, ranks.count)
    try:
        collection(batch)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None}


JOBS = {"train": train, "shared_id": shared_id, "wrong": wrong, "silent": silent}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            result = run(job)
        except Exception:
            result = {"failed": traceback.format_exc()}
        print(json.dumps(result), flush=True)


def run(job: dict[str, Any]) -> dict[str, Any]:
    folder, arguments = Path(job["folder"]), job["arguments"]
    if job["name"] == "alone":
        return alone(folder, **arguments)
    meeting = f"file://{folder}/meeting"
    rank, count = job["rank"], job["count"]
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        return JOBS[job["name"]](Ranks(timeout_s=job["timeout_s"]), folder, **arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
