"""The merged feed of many ranks, against a model: a run saves, crashes and resumes at any point, and a follower lags behind.

What could break: a checkpoint is reported before the rows of all ranks are there, or with later rows; a follower waits for ever
for a rank that had nothing to publish, or for a checkpoint that was prepared and never written. The ranks are stores in this
process. A failure prints its seed.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from rowmill.distributed import FeedOfRanks, Manifest
from rowmill.errors import StoreSuperseded
from rowmill.optim import SGD
from rowmill.store.feed import FeedCheckpoint, FeedDeletes, FeedRollback, FeedRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rowmill.store.feed import FeedEvent
    from rowmill.store.store import Store

RANKS = 3
IDS = 12
"""Of each rank."""
Rows = dict[int, float]


class Run:
    """Stores of all ranks, and what their rows are at each checkpoint.

    Attributes:
        rows: The rows of all ranks now; id `n` is of rank `n % RANKS`.
        at: For each number of a checkpoint, the rows of every attempt that all ranks prepared.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: Rows = {}
        self.saved: Rows = {}
        self.at: defaultdict[int, list[Rows]] = defaultdict(list)
        self.manifest: Manifest | None = None
        self.stores: list[Store] = []
        self._value = 0.0
        self.open()

    def open(self) -> None:
        epochs = [0] * RANKS if self.manifest is None else self.manifest.epochs
        self.rows = dict(self.saved)
        self.stores = [
            rowmill.open(
                self.folder / f"parts-1/{rank}",
                memory="16MiB",
                feed="32MiB",
                feed_interval_s=1000.0,
                at=epoch,
            )
            for rank, epoch in enumerate(epochs)
        ]
        for store in self.stores:
            store.table("t", dim=1, optimizer=SGD(lr=1.0))

    def put(self, rank: int, place: int) -> None:
        self._value += 1
        id_ = place * RANKS + rank
        self.stores[rank].open_table("t").put([id_], np.full((1, 1), self._value, np.float32))
        self.rows[id_] = self._value

    def delete(self, rank: int, place: int) -> None:
        id_ = place * RANKS + rank
        self.stores[rank].open_table("t").delete([id_])
        self.rows.pop(id_, None)

    def publish(self, rank: int) -> None:
        self.stores[rank].publish()

    def prepare(self, ranks: int = RANKS) -> list[int]:
        """Prepare a checkpoint on the first ranks."""
        epochs = [store.prepare()["epoch"] for store in self.stores[:ranks]]
        if ranks == RANKS:
            self.at[self.number + 1].append(dict(self.rows))
        return epochs

    @property
    def number(self) -> int:
        return 0 if self.manifest is None else self.manifest.number

    def write(self, epochs: list[int]) -> None:
        self.manifest = Manifest(
            id="run",
            number=self.number + 1,
            generation=1,
            epochs=epochs,
            seed=0,
            tables=["t"],
            position=None,
            state_bytes=0,
            state_crc=0,
        )
        self.manifest.save(self.folder)
        self.saved = dict(self.rows)

    def commit(self, ranks: int = RANKS) -> None:
        for store in self.stores[:ranks]:
            store.commit()

    def save(self) -> None:
        self.write(self.prepare())
        self.commit()

    def crash(self) -> None:
        for store in self.stores:
            store.close()
        self.open()

    def close(self) -> None:
        for store in self.stores:
            store.close()


class Follower:
    """A copy of all rows, which can leave off after any event."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._position: str | None = None
        self.rows: Rows = {}
        self.seen = Counter[str]()
        self.last: FeedEvent | None = None
        self.restart()

    def restart(self) -> None:
        """Begin again behind the last event."""
        if self._position is None:
            self.rows = {}
        feed = FeedOfRanks(self._run.folder)
        self._events = self._followed(feed)

    def _followed(self, feed: FeedOfRanks) -> Iterator[FeedEvent]:
        for event in feed.follow(self._position, timeout_s=0):
            self._position = feed.position
            yield event

    def read(self, events: int | None = None) -> None:
        """Apply this many events, or all that were published."""
        while events is None or events > 0:
            try:
                event = next(self._events, None)
            except StoreSuperseded:
                # It was copying a checkpoint that is gone.
                event, self._position = None, None
            if event is None:
                # It has read all; what is published later, another one reads.
                self.restart()
                return
            self.apply(event)
            events = None if events is None else events - 1

    def apply(self, event: FeedEvent) -> None:
        self.last = event
        self.seen[type(event).__name__] += 1
        match event:
            case FeedRows():
                self.rows.update(zip(event.ids.tolist(), event.weights[:, 0].tolist(), strict=True))
            case FeedDeletes():
                for id_ in event.ids.tolist():
                    self.rows.pop(id_, None)
            case FeedCheckpoint():
                assert self.rows in self._run.at[event.epoch], event.epoch
            case FeedRollback():
                pass


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.close()


def test_no_rank_is_read_beyond_a_checkpoint_that_others_have_not_reached(run: Run) -> None:
    run.put(0, 0)
    run.save()
    follower = Follower(run)
    follower.read()
    assert follower.rows == run.saved
    run.put(1, 0)
    # Rank 0 is ahead: its frame of the checkpoint and later rows are published.
    epochs = run.prepare(1)
    before = dict(run.rows)
    run.stores[0].commit()
    run.put(0, 1)
    run.publish(0)
    follower.read()
    assert follower.seen["FeedCheckpoint"] == 1
    assert 3 not in follower.rows
    run.at[2].append(before)
    epochs += [store.prepare()["epoch"] for store in run.stores[1:]]
    run.write(epochs)
    for store in run.stores[1:]:
        store.commit()
    follower.read()
    assert follower.seen["FeedCheckpoint"] == 2
    assert follower.rows == run.rows


def test_ranks_that_published_nothing_are_not_waited_for(run: Run) -> None:
    run.put(0, 0)
    run.save()
    follower = Follower(run)
    follower.read()
    run.put(0, 0)
    run.publish(0)
    follower.read()
    run.crash()
    follower.read()
    assert follower.seen["FeedRollback"] == 1
    assert isinstance(follower.last, FeedCheckpoint)
    assert follower.rows == run.saved
    run.put(1, 0)
    run.save()
    follower.read()
    assert follower.last.epoch == 2
    assert follower.rows == run.saved


@pytest.mark.parametrize("prepared", [1, 2, RANKS])
def test_a_prepared_checkpoint_that_was_never_written_is_void(run: Run, prepared: int) -> None:
    run.put(0, 0)
    run.save()
    follower = Follower(run)
    run.put(0, 1)
    run.put(2, 1)
    run.prepare(prepared)
    follower.read()
    run.crash()
    run.put(1, 1)
    run.save()
    follower.read()
    assert follower.seen["FeedRollback"] == 1
    assert isinstance(follower.last, FeedCheckpoint)
    assert follower.rows == run.saved


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_saves_crashes_and_reads(run: Run, seed: int) -> None:
    draw = random.Random(seed)
    run.put(0, 0)
    run.save()
    follower = Follower(run)
    for _ in range(120):
        rank, place = draw.randrange(RANKS), draw.randrange(IDS)
        match draw.choice("pppppddbbbbrrrrssxyzc"):
            case "p":
                run.put(rank, place)
            case "d":
                run.delete(rank, place)
            case "b":
                run.publish(rank)
            case "r":
                follower.read(draw.randrange(6))
            case "s":
                run.save()
            case "x":
                run.prepare(rank)
                follower.read(draw.randrange(6))
                run.crash()
            case "y":
                epochs = run.prepare()
                follower.read(draw.randrange(6))
                if draw.random() < 0.5:
                    run.write(epochs)
                    run.commit(rank)
                run.crash()
            case "z":
                follower.restart()
            case _:
                run.crash()
    run.save()
    follower.read()
    assert follower.rows == run.saved
    assert isinstance(follower.last, FeedCheckpoint)
    assert follower.last.epoch == run.number
