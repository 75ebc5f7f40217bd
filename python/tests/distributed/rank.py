"""One rank of the tests: a process that runs jobs read from standard input.

A process runs many jobs, each with its own process group, because importing torch takes longer than most jobs.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
import weakref
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
import rowmill
from python.tests.distributed.auto import auto_placed, without_room
from python.tests.distributed.converted import train_converted, wrong_conversion
from python.tests.distributed.placed import bags, placed_weights, planned_bags
from python.tests.distributed.tables import (
    batch_of,
    counts_of,
    open_tables,
    part_of,
    rows_of,
)
from rowmill import RaggedBatch
from rowmill.distributed import (
    CacheUse,
    Pipeline,
    Prepared,
    Ranks,
    RowCache,
    ShardedCollection,
)
from rowmill.distributed._exchange.category import category_of
from rowmill.distributed.both_ways import BothWays
from rowmill.errors import InvalidInput
from rowmill.nn import EmbeddingCollection, Feature
from rowmill.ops.exchange.owner_hash import hashed, owner, states

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def dense(width: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1))


def alone(folder: Path, steps: int, rules: bool = False, output: str = "float32") -> dict[str, Any]:
    """The same training on one rank without an exchange."""
    store, features = open_tables(folder, 0, rules=rules)
    embeddings = EmbeddingCollection(features, output_dtype=getattr(torch, output))
    model = dense(sum(embeddings.dims))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(steps):
        batch, labels = batch_of(step, features)
        optimizer.zero_grad()
        logits = model(embeddings(batch).float()).view(-1)
        loss = binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows, counts = rows_of(features), counts_of(store)
    store.close()
    return {"losses": losses, "rows": rows, "counts": counts}


def parts(
    ranks: Ranks, features: list[Feature], steps: Iterable[int]
) -> Iterator[tuple[RaggedBatch, Tensor]]:
    """This rank's part of every batch."""
    for step in steps:
        yield part_of(*batch_of(step, features), ranks.rank, ranks.count)


def ahead(
    pipeline: Pipeline, ranks: Ranks, features: list[Feature], steps: int, stops: list[int]
) -> Iterator[tuple[Prepared, Tensor]]:
    """This rank's part of every batch, prefetched by runs that end early at each of `stops`, and a last run."""
    for begin, end in pairwise([0, *stops, steps]):
        run = pipeline.run(parts(ranks, features, range(begin, steps)))
        yield from islice(run, end - begin)
        run.close()


def train(
    ranks: Ranks,
    folder: Path,
    steps: int,
    bound: int | None = 0,
    rules: bool = False,
    pipeline: dict[str, int] | None = None,
    stops: Sequence[int] = (),
    output: str = "float32",
    **settings: Any,
) -> dict[str, Any]:
    """Train with an exchange; pooled vectors have dtype `output`."""
    store, features = open_tables(folder, ranks.rank, bound, rules)
    dtype = getattr(torch, output)
    collection = ShardedCollection(features, ranks=ranks, output_dtype=dtype, **settings)
    batches = parts(ranks, features, range(steps))
    if pipeline is not None:
        coming = Pipeline(collection, **pipeline)
        batches = ahead(coming, ranks, features, steps, list(stops))
    model = ranks.data_parallel(dense(sum(collection.dims)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for batch, labels in batches:
        optimizer.zero_grad()
        logits = model(collection(batch).float()).view(-1)
        loss = ranks.mean(binary_cross_entropy_with_logits(logits, labels, reduction="none"))
        loss.backward()
        optimizer.step()
        losses.append(ranks.total(loss))
    rows, counts = rows_of(features), counts_of(store)
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
        "counts": counts,
        "announced": store.stats()["lookahead_rows"],
        "stale": store.stats()["staleness"],
    }
    store.close()
    return result


def shared_id(ranks: Ranks, folder: Path, strategy: str) -> dict[str, Any]:
    """Every rank looks up one id, with a different gradient per rank."""
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="16MiB", threads=1)
    zeros = rowmill.init.Zeros()
    table = store.table("t", dim=2, optimizer=rowmill.optim.SGD(lr=1.0), initializer=zeros)
    collection = ShardedCollection([Feature("f", table)], ranks=ranks, strategy=strategy)
    pooled = collection(RaggedBatch.from_lists({"f": [[9, 9], [9]]}))
    (pooled * (ranks.rank + 1)).sum().backward()
    result = {"has": bool(table.contains([9])[0]), "row": table.get([9])[0].tolist()}
    store.close()
    return result


def requests(ranks: Ranks, folder: Path, strategy: Any) -> dict[str, Any]:
    """Every step, each rank looks up shared ids, some repeatedly, and one id that only it uses."""
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="16MiB", threads=1)
    sgd = rowmill.optim.SGD(lr=1.0)
    tables = [store.table(name, dim=2, optimizer=sgd) for name in ("a", "b")]
    features = [Feature("f", tables[0], padding_idx=0), Feature("g", tables[1])]
    collection = ShardedCollection(features, ranks=ranks, strategy=strategy)
    for step in range(400):
        mine = 1000 + 3 * step + ranks.rank
        bags = {"f": [[2**63 - 1, 0, mine], [2**63 - 1]], "g": [[-7], [-7]]}
        collection(RaggedBatch.from_lists(bags)).sum().backward()
    hottest = {table.name: table.hottest(1) for table in tables}
    result = {"counts": counts_of(store), "hottest": hottest}
    store.close()
    return result


def weighted(ranks: Ranks, folder: Path, **settings: Any) -> dict[str, Any]:
    """Gradients of id weights for two batches with live graphs, and pooled vectors of the first."""
    store, features = open_tables(folder, ranks.rank)
    features = [feature for feature in features if feature.pooling == "sum"]
    one, own = open_tables(folder / "one", ranks.rank)
    own = [feature for feature in own if feature.pooling == "sum"]
    found: list[list[Any]] = []
    for collection in (
        ShardedCollection(features, ranks=ranks, **settings),
        EmbeddingCollection(own),
    ):
        collection.frozen = True
        outs: list[Tensor] = []
        leaves: list[Tensor] = []
        for step in (0, 4):
            batch, _ = part_of(*batch_of(step, features), ranks.rank, ranks.count)
            weights = torch.linspace(-1.0, 2.0, len(batch.values)).requires_grad_()
            leaves.append(weights)
            outs.append(
                collection(RaggedBatch(batch.features, batch.values, batch.offsets, weights))
            )
        before = outs[0].detach().clone()
        loss = sum((out.square().sum() for out in outs), torch.zeros(()))
        gradients = torch.autograd.grad(loss, leaves)
        found.append([before.tolist(), *(gradient.tolist() for gradient in gradients)])
    store.close()
    one.close()
    return {"sharded": found[0], "alone": found[1]}


def external(ranks: Ranks, folder: Path, shared: bool, **settings: Any) -> dict[str, Any]:
    """A feature over rows of another model, which each rank wrote for itself, or rank 0 for all."""
    other = folder / f"other-{0 if shared else ranks.rank}"
    ids = torch.arange(40)
    with rowmill.open(folder / f"writing-{ranks.rank}", memory="16MiB", seed=3) as store:
        table = store.table("theirs", dim=4, optimizer=rowmill.optim.SGD(lr=1.0))
        table.put(ids, ids[:, None] + torch.arange(4) / 8)
        store.checkpoint()
    if not shared or ranks.rank == 0:
        (folder / f"writing-{ranks.rank}").rename(other)
    ranks.gather(None)
    store, features = open_tables(folder, ranks.rank)
    theirs = rowmill.open(other, memory="16MiB", read_only=True)
    features = [*features[:2], Feature("theirs", theirs.open_table("theirs")), *features[2:]]
    collection = ShardedCollection(features, ranks=ranks, **settings)
    run = Pipeline(collection, depth=2, in_flight=2)

    def batches() -> Iterator[tuple[RaggedBatch, Tensor]]:
        for step in range(5):
            batch, labels = part_of(*batch_of(step, features), ranks.rank, ranks.count)
            yield batch, labels

    seen: list[Tensor] = []
    wanted: list[Tensor] = []
    for step, (batch, _) in enumerate(run.run(batches())):
        pooled = collection(batch)
        pooled.sum().backward()
        seen.append(collection.split(pooled)["theirs"].detach())
        asked, _ = part_of(*batch_of(step, features), ranks.rank, ranks.count)
        flat, ends = asked.bags("theirs")
        known = (flat[:, None] + torch.arange(4) / 8) * (flat < 40)[:, None]
        born = theirs.open_table("theirs").get(flat) * (flat >= 40)[:, None]
        bag_of = torch.arange(asked.batch_size).repeat_interleave(ends.diff())
        wanted.append(torch.zeros(asked.batch_size, 4).index_add(0, bag_of, known + born))
    result = {
        "equal": [
            torch.allclose(one, other, atol=1e-5) for one, other in zip(seen, wanted, strict=True)
        ],
        "steps": counts_of(store)["user"]["steps"],
        "theirs": len(theirs.open_table("theirs")),
    }
    store.close()
    theirs.close()
    return result


def external_elsewhere(ranks: Ranks, folder: Path, written_by: int, last: int) -> dict[str, Any]:
    """A table of another model whose rows some ranks wrote, or one process; the last rank has `last` more rows."""
    store, features = open_tables(folder, ranks.rank)
    at = folder / f"other-{ranks.rank}"
    with rowmill.open(at, memory="16MiB") as writing:
        table = writing.table("theirs", dim=4, optimizer=rowmill.optim.SGD(lr=1.0))
        ids = torch.arange(3000)
        owners = owner(hashed(ids, states([category_of("theirs")])), max(written_by, 1))
        mine = ids[owners == (0 if written_by == 1 else ranks.rank)] if written_by > 0 else ids[:0]
        if ranks.rank == ranks.count - 1:
            mine = torch.cat([mine, torch.arange(3000, 3000 + last)])
        table.put(mine, torch.zeros(len(mine), 4))
        writing.checkpoint()
    theirs = rowmill.open(at, memory="16MiB", read_only=True)
    try:
        ShardedCollection([*features, Feature("theirs", theirs.open_table("theirs"))], ranks=ranks)
    except InvalidInput as error:
        return {"message": str(error)}
    finally:
        theirs.close()
        store.close()
    return {"message": ""}


def all_to_all(ranks: Ranks, folder: Path, most: int) -> dict[str, Any]:
    """Many all-to-alls in flight, of `Ranks` and of `BothWays` itself; returns what differs from the expected parts."""
    down = dist.new_group()

    def part(number: int, source: int, target: int, dtype: torch.dtype) -> Tensor:
        random = torch.Generator().manual_seed((number * 8 + source) * 8 + target)
        size = int(torch.randint(most + 1, (), generator=random)) * ((number + source) % 3)
        return torch.randint(100, (size,), generator=random).to(dtype)

    begun: list[tuple[str, Any, Tensor, Tensor]] = []
    for number in range(12):
        dtype = (torch.float32, torch.int64, torch.float16)[number % 3]
        to = [part(number, ranks.rank, target, dtype) for target in range(ranks.count)]
        come = [part(number, source, ranks.rank, dtype) for source in range(ranks.count)]
        sizes = [len(one) for one in come], [len(one) for one in to]
        for name in ("ranks", "both ways"):
            out, wanted = torch.cat(to), torch.cat(come)
            back = torch.full_like(wanted, -1)
            if name == "ranks":
                work: Any = ranks.all_to_all(back, out, *sizes)
            else:
                work = BothWays(ranks.group, down, back, out, *sizes)
            begun.append((f"{name} {number}", work, back, wanted))
    futures = [work.get_future() for _, work, _, _ in begun[::2]]
    for _, work, _, _ in begun:
        assert work.wait()
    for future in futures:
        future.wait()
    return {
        "kinds": sorted({type(work).__name__ for _, work, _, _ in begun[::2]}),
        "wrong": [name for name, _, back, wanted in begun if not torch.equal(back, wanted)],
    }


def held_by_messages(ranks: Ranks, folder: Path, **settings: Any) -> dict[str, Any]:
    """Train one step on 20 tables of 2000 rows each; returns the bytes of message buffers, and what is alive afterwards."""
    gc.disable()
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="64MiB", threads=1, seed=7)
    sgd = rowmill.optim.SGD(lr=0.1)
    tables = [store.table(f"t{n}", dim=4, optimizer=sgd) for n in range(20)]
    collection = ShardedCollection(
        [Feature(table.name, table) for table in tables], ranks=ranks, **settings
    )
    ids = torch.arange(2000).repeat(20, 1).T * (ranks.rank + 1)
    pooled = collection(RaggedBatch.from_dense([table.name for table in tables], ids))
    pooled.sum().backward()
    rounds = collection.traffic.rounds["rows"]
    assert collection.traffic.rounds["gradients"] == rounds
    node: Any = pooled.grad_fn
    coming, sums = weakref.ref(node.coming), pooled.sum(dim=1).tolist()
    del node, pooled
    alive = coming() is not None
    gc.enable()
    store.close()
    return {"bytes": collection.bytes_held, "rounds": rounds, "pooled": sums, "alive": alive}


def wrong(ranks: Ranks, folder: Path, what: str, **settings: Any) -> dict[str, Any]:
    """Pass bad input on the last rank; returns the error of every rank and the seconds until it was raised."""
    store, features = open_tables(folder, ranks.rank, rules=what == "placement rule")
    last = ranks.rank == ranks.count - 1
    if what == "placement rule":
        settings["placement"] = "user=replicated"
    if what == "optimizer":
        sgd = rowmill.optim.SGD(lr=0.3 if last else 0.1)
        features[-1] = Feature("colour", store.table("colour2", dim=4, optimizer=sgd))
    if what == "dim":
        sgd = rowmill.optim.SGD(lr=0.1)
        table = store.table("colour2", dim=8 if last else 4, optimizer=sgd)
        features[-1] = Feature("colour", table)
    if last and what == "order":
        features.reverse()
    if what == "made":
        names = ["one", "two"]
        sgd = rowmill.optim.SGD(lr=0.1)
        for name in reversed(names) if last else names:
            store.table(name, dim=4, optimizer=sgd)
        features = [Feature(name, store.open_table(name)) for name in names]
    if last and what == "strategy":
        settings["strategy"] = "fused"
    if last and what.startswith("placement") and what != "placement rule":
        settings["placement"] = {
            "placement": "user=pooled",
            "placement kind": "user=split",
            "placement rank": "user=whole:3",
            "placement table": "usr=whole",
        }[what]
    if last and what in ("chunk", "no chunk", "chunk of words"):
        settings["chunk_bytes_max"] = {"chunk": 1000, "no chunk": 0, "chunk of words": "many"}[what]
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
        if last and what == "none":
            batch = None  # Callers without type checks may pass this.
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
                # The collection is still usable.
                collection(good).sum().backward()
                after = [1.0]
    except Exception as raised:
        error = raised
    took = time.monotonic() - began
    assert error is not None
    return {"error": type(error).__name__, "message": str(error), "s": took, "after": after}


def wrong_ahead(ranks: Ranks, folder: Path, what: str, pipeline: dict[str, int]) -> dict[str, Any]:
    """The last rank's fourth batch is invalid; returns the batches seen and the error of every rank."""
    store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks)
    last = ranks.rank == ranks.count - 1

    def batches() -> Iterator[tuple[RaggedBatch, Tensor]]:
        for number, (batch, labels) in enumerate(parts(ranks, features, range(8))):
            if last and number == 3:
                if what == "end":
                    return
                if what == "raise":
                    raise OSError("the file is gone")
                if what == "category":
                    names = ("flavour", *batch.features[1:])
                    batch = RaggedBatch(names, batch.values, batch.offsets)
            yield batch, labels

    run = Pipeline(collection, **pipeline)
    seen = 0
    error: Exception | None = None
    try:
        for batch, _ in run.run(batches()):
            if what == "mode" and seen == 3:
                collection.eval()
            if last and what == "closed" and seen == 3:
                store.close()
            collection(batch).sum().backward()
            seen += 1
    except Exception as raised:
        error = raised
    after: list[int] = []
    if what != "closed":  # The pipeline is still usable.
        collection.train()
        for batch, _ in run.run(parts(ranks, features, range(3))):
            collection(batch).sum().backward()
            after.append(1)
    assert error is not None
    return {"error": type(error).__name__, "message": str(error), "seen": seen, "after": after}


def evaluated_ahead(ranks: Ranks, folder: Path, pipeline: dict[str, int]) -> dict[str, Any]:
    """Evaluate batches with and without prefetch, also in the middle of a prefetched training run."""
    store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks)
    training, run = Pipeline(collection, **pipeline), Pipeline(collection, **pipeline)
    steps = range(6)
    refused = ""
    for number, (batch, _) in enumerate(training.run(parts(ranks, features, steps))):
        collection(batch).sum().backward()
        if number == 3:
            collection.eval()
            collection(part_of(*batch_of(9, features), ranks.rank, ranks.count)[0])
            collection.train()
            try:
                next(training.run(parts(ranks, features, steps)))
            except InvalidInput as error:
                refused = str(error)
    collection.eval()
    rows = rows_of(features)
    with torch.no_grad():
        ahead = [collection(batch).tolist() for batch, _ in run.run(parts(ranks, features, steps))]
    in_time = [collection(batch).tolist() for batch, _ in parts(ranks, features, steps)]
    changed = rows != rows_of(features)
    result = {"equal": ahead == in_time, "changed": changed, "refused": refused}
    store.close()
    return result


def unequal_pipelines(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Ranks with different prefetch depths."""
    _store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks)
    try:
        Pipeline(collection, depth=2 + ranks.rank)
    except Exception as error:
        return {"message": str(error)}
    return {"message": ""}


def cached(ranks: Ranks, folder: Path, cache: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Alternate training and evaluation, without and with a row cache; one table belongs to another model."""
    (seen, rows, again, sent, none), (cached_seen, cached_rows, cached_again, cached_sent, use) = (
        _turns(ranks, folder / str(row_cache is None), row_cache, **settings)
        for row_cache in (None, RowCache(**cache))
    )
    assert none == CacheUse()
    return {
        "seen": cached_seen == seen,
        "rows": cached_rows == rows and cached_again == again,
        "bytes": sent,
        "bytes_cached": cached_sent,
        "use": asdict(use),
    }


def _turns(ranks: Ranks, folder: Path, row_cache: RowCache | None, **settings: Any) -> list[Any]:
    """Pooled vectors and rows of ten steps, an evaluation, ten steps and an evaluation; rows of a checkpoint between."""
    folder.mkdir(exist_ok=True)
    theirs_at = folder / f"theirs-{ranks.rank}"
    with rowmill.open(theirs_at, memory="16MiB", seed=3) as store:
        table = store.table("theirs", dim=8, optimizer=rowmill.optim.SGD(lr=1.0))
        table.put(torch.arange(200), torch.rand(200, 8, generator=torch.Generator().manual_seed(1)))
        store.checkpoint()
    theirs = rowmill.open(theirs_at, memory="16MiB", read_only=True)
    store, features = open_tables(folder, ranks.rank)
    features.insert(2, Feature("theirs", theirs.open_table("theirs"), pooling="mean"))
    collection = ShardedCollection(features, ranks=ranks, **settings)
    pipeline = Pipeline(collection, depth=2, row_cache=row_cache)
    seen: list[Any] = []
    rows: list[Any] = []
    for first in (0, 10):
        collection.train()
        run = pipeline.run(parts(ranks, features, range(first, first + 10)))
        for number, (batch, _) in enumerate(run):
            if (first, number) == (10, 4):
                store.checkpoint()
                rows.append(rows_of(features))
            pooled = collection(batch)
            pooled.square().sum().backward()
            seen.append(pooled.tolist())
        collection.eval()
        with torch.no_grad():
            run = pipeline.run(parts(ranks, features, range(8, 20)))
            seen += [collection(batch).tolist() for batch, _ in run]
        rows.append(rows_of(features))
    sent = dict(collection.traffic.bytes_sent)
    store.close()
    store, features = open_tables(folder, ranks.rank)
    again = rows_of(features)
    assert all(again[name] == rows[1][name] for name in again)
    store.close()
    theirs.close()
    return [seen, rows, again, sent, pipeline.cache_use]


def misused_cache(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Skip a batch of a run on all ranks, use one twice, or train in the middle of an evaluation run."""
    store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks).eval()
    pipeline = Pipeline(collection, row_cache=RowCache())
    found: list[str] = []
    for what in ("left out", "twice", "trained"):
        run = pipeline.run(parts(ranks, features, range(6)))
        try:
            for number, (batch, _) in enumerate(run):
                if number == 2 and what == "left out":
                    continue
                if number == 2 and what == "trained":
                    collection.train()
                    pooled = collection(part_of(*batch_of(9, features), ranks.rank, ranks.count)[0])
                    pooled.sum().backward()
                    collection.eval()
                collection(batch)
                if number == 2 and what == "twice":
                    collection(batch)
        except Exception as error:
            found.append(str(error))
        run.close()
    # The pipeline is still usable.
    for batch, _ in pipeline.run(parts(ranks, features, range(3))):
        collection(batch)
    store.close()
    return {"found": found}


def wrong_cache(ranks: Ranks, folder: Path, cache: dict[str, Any]) -> dict[str, Any]:
    """An invalid row cache on the last rank."""
    store, features = open_tables(folder, ranks.rank)
    collection = ShardedCollection(features, ranks=ranks)
    mine = cache if ranks.rank == ranks.count - 1 else {}
    try:
        Pipeline(collection, row_cache=RowCache(**mine))
    except InvalidInput as error:
        return {"message": str(error)}
    finally:
        store.close()
    return {"message": ""}


def silent(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """The last rank makes no calls."""
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


JOBS = {
    "train": train,
    "shared_id": shared_id,
    "requests": requests,
    "all_to_all": all_to_all,
    "held_by_messages": held_by_messages,
    "weighted": weighted,
    "external": external,
    "external_elsewhere": external_elsewhere,
    "bags": bags,
    "placed_weights": placed_weights,
    "planned_bags": planned_bags,
    "auto_placed": auto_placed,
    "without_room": without_room,
    "train_converted": train_converted,
    "wrong_conversion": wrong_conversion,
    "wrong": wrong,
    "wrong_ahead": wrong_ahead,
    "evaluated_ahead": evaluated_ahead,
    "unequal_pipelines": unequal_pipelines,
    "cached": cached,
    "misused_cache": misused_cache,
    "wrong_cache": wrong_cache,
    "silent": silent,
}


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
        # Reference cycles keep groups, each of whose threads wakes up 100 times a second.
        gc.collect()


if __name__ == "__main__":
    main()
