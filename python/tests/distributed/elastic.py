"""Ranks for tests of checkpoints and failures: each rank of each run is a process.

Processes are forked from one that has imported torch, so starting one takes a moment.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

import rowmill
from python.tests.distributed.tables import batch_of, part_of, tables_of
from python.tests.warm import fork_server
from rowmill import RaggedBatch
from rowmill.distributed import Checkpoint, Pipeline, Ranks, ShardedCollection, Watch
from rowmill.distributed._checkpoint import checkpoint as checkpoints
from rowmill.distributed._checkpoint import room
from rowmill.distributed._checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

_FORKING = fork_server()


class Run:
    """The ranks of one run, as processes; their results and errors are in `folder`."""

    def __init__(self, job: str, folder: Path, *, count: int, **arguments: Any) -> None:
        self.folder = folder / f"said-{uuid4().hex}"
        self.folder.mkdir(parents=True)
        self.ranks: list[ForkServerProcess] = []
        for rank in range(count):
            called = (job, folder, self.folder, rank, count, arguments)
            process = _FORKING.Process(target=_main, args=called)
            process.start()
            self.ranks.append(process)

    def kill(self, rank: int) -> None:
        """Kill a rank with SIGKILL, as the out-of-memory killer does."""
        self.ranks[rank].kill()

    def end(self, timeout_s: float = 120.0) -> list[int | None]:
        """Wait until all ranks have ended; returns their exit statuses. Ranks that hang fail the test."""
        for process in self.ranks:
            process.join(timeout_s)
        ended = [process.exitcode for process in self.ranks]
        for process in self.ranks:
            process.kill()
        assert None not in ended, (
            f"ranks hang: {ended}, {[self.error(r) for r in range(len(ended))]}"
        )
        return ended

    def results(self) -> list[dict[str, Any]]:
        """The result of every rank; the test fails unless all succeeded."""
        ended = self.end()
        assert not any(ended), (ended, [self.error(rank) for rank in range(len(ended))])
        return [
            json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(len(ended))
        ]

    def error(self, rank: int) -> str:
        """Standard error of a rank."""
        path = self.folder / f"{rank}.err"
        return path.read_text() if path.exists() else ""

    def steps(self) -> list[str]:
        """The steps that rank 0 finished, one line each."""
        path = self.folder / "steps"
        return path.read_text().splitlines() if path.exists() else []

    def await_steps(self, count: int) -> None:
        """Wait until rank 0 has finished `count` steps, or a rank has ended."""
        while len(self.steps()) < count and all(process.is_alive() for process in self.ranks):
            time.sleep(0.002)


def _main(
    job: str, folder: Path, said: Path, rank: int, count: int, arguments: dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    with (said / f"{rank}.err").open("w") as errors:
        os.dup2(errors.fileno(), 2)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{said}/meeting",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=100),
        )
        result = JOBS[job](Ranks(), folder, said, **arguments)
        (said / f"{rank}.json").write_text(json.dumps(result))
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # A real program would exit here too, which closes the connections that other ranks wait on.
        os._exit(1)


class Backwards(torch.nn.Module):
    """A model whose gradients are ready in another order than DDP expects, so DDP rebuilds its buckets after a step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.last = torch.nn.Linear(40, 1)
        self.first = torch.nn.Linear(width, 60)
        self.middle = torch.nn.Linear(60, 40)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(pooled)))))


def train(
    ranks: Ranks,
    folder: Path,
    said: Path,
    *,
    until: int,
    every: int,
    random: bool = True,
    die: str | None = None,
    keep: int | None = None,
    placement: str | None = None,
    of_collection: str | None = None,
) -> dict[str, Any]:
    """Train from the last checkpoint, and save at intervals; `of_collection` is the placement that the collection gets."""
    checkpoint = Checkpoint(folder / "run", ranks=ranks)
    losses: dict[int, float] = {}
    settings: dict[str, Any] = {"memory": "16MiB", "seed": 7, "placement": placement}
    with Watch(ranks, grace_s=5) as watch, checkpoint.open(**settings) as store:
        features = tables_of(store)
        collection = ShardedCollection(features, ranks=ranks, placement=of_collection)
        model = ranks.data_parallel(Backwards(sum(collection.dims)), repeatable=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.manual_seed(ranks.rank)
        begin = checkpoint.restore(model, optimizer) or 0
        for step in range(begin, until):
            watch.step(step)
            batch, labels = part_of(*batch_of(step, features), ranks.rank, ranks.count)
            optimizer.zero_grad()
            weights = torch.rand(len(labels)) if random else None
            logits = model(collection(batch)).view(-1)
            loss = ranks.mean(
                binary_cross_entropy_with_logits(logits, labels, weights, reduction="none")
            )
            loss.backward()
            optimizer.step()
            losses[step] = ranks.total(loss)
            if ranks.rank == 0:
                with (said / "steps").open("a") as steps:
                    print(step, losses[step].hex(), file=steps)
            if (step + 1) % every == 0:
                if die is not None and step + 1 == until:
                    _die_while_saving(die, ranks.rank, store)
                version = keep and rowmill.NewVersion(
                    name=f"step-{step + 1}", keep=keep, step=step + 1
                )
                checkpoint.save(model, optimizer, position=step + 1, version=version or None)
        result = {
            "begin": begin,
            "losses": [losses[step] for step in range(begin, until)],
            "rows": rows_of(store),
            "counters": counters_of(store),
            "weights": [p.detach().flatten().tolist() for p in model.parameters()],
            "random": torch.rand(1).item(),
        }
    return result


def _die_while_saving(where: str, rank: int, store: rowmill.Store) -> None:
    """Kill a rank at a given point in `Checkpoint.save`."""

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "before any part" and rank == 1:
        store.prepare = die
    if where == "before the manifest" and rank == 0:
        Manifest.save = die
    if where == "after the manifest" and rank == 0:
        save = Manifest.save

        def save_and_die(manifest: Manifest, folder: Path) -> None:
            save(manifest, folder)
            die()

        Manifest.save = save_and_die
    if where == "before a commit" and rank == 1:
        store.commit = die


def rows_of(store: rowmill.Store) -> dict[str, Any]:
    """Every row of this rank, by table and id: weights and state."""
    rows: dict[str, Any] = {}
    for name in store.table_names():
        table = store.open_table(name)
        ids = np.sort(np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in table.scan())]))
        both = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
        rows[name] = {
            str(id_): row.tolist()
            for id_, row in zip(ids.tolist(), both.astype(np.float64), strict=True)
        }
    return rows


def counters_of(store: rowmill.Store) -> dict[str, list[int]]:
    """Per table, its number of steps and of created rows."""
    tables = store.stats()["tables"]
    return {name: [figures["steps"], figures["births"]] for name, figures in tables.items()}


def look(
    ranks: Ranks,
    folder: Path,
    said: Path,
    *,
    placement: str | None = None,
    dies_at: int | None = None,
) -> dict[str, Any]:
    """Rows and counters right after the checkpoint was opened.

    With `dies_at`, rank 1 is killed when it has taken over the rows of as many parts.
    """
    checkpoint = Checkpoint(folder / "run", ranks=ranks)
    if ranks.rank == 1 and dies_at is not None:
        changes = checkpoint._changes

        def until_killed(manifest: Manifest, number: int, epoch: int) -> Any:
            if number == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return changes(manifest, number, epoch)

        checkpoint._changes = until_killed
    with checkpoint.open(memory="16MiB", placement=placement) as store:
        rows = rows_of(store)
        return {"rows": rows, "counters": counters_of(store), "number": checkpoint.number}


def fill(ranks: Ranks, folder: Path, said: Path, *, rows: int) -> dict[str, Any]:
    """Save a checkpoint with `rows` rows per rank."""
    checkpoint = Checkpoint(folder / "run", ranks=ranks)
    with checkpoint.open(memory="32MiB") as store:
        table = store.table("t", dim=128, optimizer=rowmill.optim.SGD(lr=0.1))
        for begin in range(ranks.rank * rows, (ranks.rank + 1) * rows, 10_000):
            ids = np.arange(begin, begin + 10_000)
            table.put(ids, np.repeat(ids[:, None].astype(np.float32), 128, axis=1))
        checkpoint.save()
    return {}


def peak(ranks: Ranks, folder: Path, said: Path) -> dict[str, Any]:
    """Growth of peak memory while the checkpoint is opened, in bytes."""
    before = _peak_bytes()
    checkpoint = Checkpoint(folder / "run", ranks=ranks)
    with checkpoint.open(memory="32MiB") as store:
        after = _peak_bytes()
        table = store.open_table("t")
        ids = np.arange(0, len(table), 997)
        right = bool((table.get(ids) == ids[:, None].astype(np.float32)).all())
        return {"bytes": after - before, "rows": len(table), "right": right}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def lose(ranks: Ranks, folder: Path, said: Path, *, how: str, victim: int) -> dict[str, Any]:
    """One rank is lost or fails, in step 7 unless `how` is "late"."""
    settings: dict[str, Any] = {"silence_s": 1.0} if how == "silence" else {}
    with Watch(
        ranks, grace_s=20.0 if how in ("kill", "raise", "interrupt") else 1.0, **settings
    ) as watch:
        for step in range(100):
            watch.step(step)
            if step == 7 and ranks.rank == victim:
                if how in ("kill", "stuck"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "silence":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if how == "raise":
                    raise ValueError("a label is 3")
                if how == "interrupt":
                    raise KeyboardInterrupt
            if step == 7 and how == "together":
                raise rowmill.errors.InvalidInput("all ranks say so")
            if step == 7 and how == "stuck":
                threading.Event().wait()
            dist.all_reduce(torch.ones(1))
        if how == "late" and ranks.rank > 0:
            # Rank 0 has left the watch, and the other ranks still work.
            time.sleep(2)
            if ranks.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait(60)
    return {}


def apart(
    ranks: Ranks, folder: Path, said: Path, *, how: str, depth: int = 0, watched: bool = False
) -> dict[str, Any]:
    """From step 3, rank 1 makes other calls than the other ranks."""
    # Longer than the limit of a test, so no test passes by this timeout.
    ranks = Ranks(timeout_s=600)
    other = ranks.rank == 1
    store = rowmill.open(folder / f"store-{ranks.rank}", memory="16MiB", threads=1, seed=7)
    checkpoint = Checkpoint(folder / "run", ranks=ranks) if how == "save" else None
    features = tables_of(store)
    collection = ShardedCollection(features, ranks=ranks)
    second = ShardedCollection(features[:2], ranks=ranks)
    model = ranks.data_parallel(torch.nn.Linear(sum(collection.dims), 1))
    steps = 8

    def batches() -> Iterator[tuple[RaggedBatch, torch.Tensor]]:
        for step in range(steps + (other and how in ("more", "save"))):
            batch, labels = part_of(*batch_of(step, features), ranks.rank, ranks.count)
            if other and how == "input" and step == 3:
                batch = RaggedBatch(batch.features, batch.values, batch.offsets[:-1])
            yield batch, labels

    def train() -> None:
        # A pipeline sends its end, so the error names the ranks with more batches.
        coming = Pipeline(collection, depth=depth).run(batches()) if depth else batches()
        with Watch(ranks) if watched else nullcontext() as watch:
            for step, (batch, labels) in enumerate(coming):
                if watch is not None:
                    watch.step(step)
                wrong = other and step == 3
                if wrong and how in ("fewer", "leaves"):
                    break
                if wrong and how == "second":
                    second(part_of(*batch_of(0, features[:2]), ranks.rank, ranks.count)[0])
                logits = model(collection(batch)).view(-1)
                if wrong and how == "twice":
                    collection(batch)
                if wrong and how == "evaluation":
                    collection.eval()(batch)
                if wrong and how == "slow":
                    time.sleep(4)
                if wrong and how == "total":
                    ranks.total(torch.zeros(()))
                if wrong and how in ("nothing", "total"):
                    continue
                losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
                loss = losses.sum() if wrong and how == "mean" else ranks.mean(losses)
                if not (wrong and how == "backward"):
                    loss.backward()
                ranks.total(loss)
            if other and how == "leaves":
                return
            if checkpoint is None:
                ranks.total(torch.zeros(()))
            else:
                checkpoint.open(memory="16MiB")

    try:
        train()
    except ValueError:
        # With a watch, the other ranks must learn of the error while this process lives.
        while watched and not (said / "over").exists():
            time.sleep(0.05)
        raise
    finally:
        if not other:
            (said / "over").touch()
    return {}


def bad(ranks: Ranks, folder: Path, said: Path, *, what: str) -> dict[str, Any]:
    """A checkpoint is used wrongly; returns the error of every rank."""
    last = ranks.rank == ranks.count - 1
    mine = folder / "run"
    if what == "another folder" and last:
        mine = folder / "empty"
    if what == "new folders":
        mine = folder / f"new-{ranks.rank // 2}"
    try:
        checkpoint = Checkpoint(mine, ranks=ranks)
        options: dict[str, Any] = {"seed": 9 if what == "seed" and last else 7}
        if what == "placements" and last:
            options["placement"] = "user=whole:1"
        if what == "placement":
            options["placement"] = "user=whole:9"
        if what in ("no disk", "no memory"):
            options["placement"] = "user=whole:1"
        if what == "no disk" and last:
            checkpoints.disk_of = full_disk
        if what == "no memory":
            room.INDEX_BYTES = 1 << 20
        if what == "option":
            options["read_only"] = True
        with checkpoint.open(memory="16MiB", **options) as store:
            features = tables_of(store)
            if what == "tables":
                store.table("another", dim=4, optimizer=rowmill.optim.SGD(lr=0.1))
            other = "user=whole:1" if what == "placement of collection" else None
            collection = ShardedCollection(features, ranks=ranks, placement=other)
            model = Backwards(sum(collection.dims) + (what == "model"))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            if what == "optimizer":
                optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
            checkpoint.restore(model, optimizer)
            if what == "position":
                try:
                    checkpoint.save(model, optimizer, position=ranks.rank // 2)
                finally:
                    # The failed save wrote nothing, so the next one succeeds.
                    checkpoint.save(model, optimizer, position=5)
            if what == "no position":
                checkpoint.save(model, optimizer, position=object())
            if what == "full" and last:
                store.prepare = _raise_full
            if what == "full":
                checkpoint.save(model, optimizer)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None}


def full_disk(_: Path) -> tuple[tuple[str, int], int]:
    """A disk of this rank alone with 100 bytes."""
    return ("full", 0), 100


def _raise_full(**_: Any) -> Any:
    raise rowmill.errors.StoreFull("no space left")


def large_messages(ranks: Ranks, folder: Path, said: Path) -> dict[str, Any]:
    """Send messages of 8 MB both ways until the other rank is killed."""
    ranks = ranks.apart(timeout_s=5)
    sizes = [2 << 20] * ranks.count
    out = torch.zeros(sum(sizes))
    back = torch.empty_like(out)
    while True:
        call = ranks.whereabouts.begin("send")
        ranks.wait(ranks.all_to_all(back, out, sizes, sizes), call)
        if ranks.rank == 0:
            with (said / "steps").open("a") as steps:
                print("sent", file=steps)


JOBS = {
    "large_messages": large_messages,
    "train": train,
    "look": look,
    "fill": fill,
    "peak": peak,
    "lose": lose,
    "apart": apart,
    "bad": bad,
}
