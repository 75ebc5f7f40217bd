"""Pipeline: prepare coming batches in threads while the training loop works on earlier batches.

One thread deduplicates the ids of coming batches and sends them to the owners, which prefetch the rows into memory. A step
then only reads rows from memory and sends them. With more than one step in flight, a second thread does that too, before
earlier steps have updated their rows. The staleness bound of each table limits the lag: the owner's store waits. At bound 0
every row is read after its last update, so results are bit-identical to those of one batch at a time.

Collectives match in the order in which each rank calls them. So each thread has its own process group and takes batches in
order. The number of batches that a thread takes depends only on the number that the loop took. If a loop ends early, its
threads still take all batches that they were allowed, because other ranks wait for them.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from rowmill.distributed.row_cache import CacheUse, with_next
from rowmill.errors import InvalidInput
from rowmill.size import check_int

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from rowmill.distributed._exchange.exchange import Exchange
    from rowmill.distributed.collection import Prepared, ShardedCollection
    from rowmill.distributed.row_cache import HeldRows, RowCache
    from rowmill.nn.ragged import RaggedBatch
    from rowmill.store.steps import Step

_T = TypeVar("_T")

DEPTH_MAX = 63
"""Largest number of steps by which lookahead can announce a row early."""

PLANNED_BATCHES = 4
"""Number of batches from which a run plans placements, whatever its depth: equal runs must have equal plans."""

_LOOK_AGAIN_S = 0.01


class Pipeline:
    """Batches of a collection, prepared ahead. The constructor and `run` are collectives.

    Args:
        collection: The collection that looks up the batches.
        depth: Number of batches whose ids are sent to owners before the loop takes them, 1 to 63.
        in_flight: Number of steps whose rows are read and not yet updated, 1 to `depth` + 1. With 1 every step reads its
            own rows. With more, rows are read early only in tables with a staleness bound above 0.
        row_cache: Cache of rows that a run does not train, kept while coming batches use them. Each batch must then be
            looked up once, in order. It draws `row_cache.ahead` more batches ahead.

    Raises:
        InvalidInput: On every rank, if an argument is invalid or ranks differ in `depth` or `in_flight`.

    Examples:
        In every process::

            pipeline = Pipeline(rows, depth=2)
            for samples, labels in pipeline.run(my_part_of_every_batch):
                loss = ranks.mean(loss_of_each(model(rows(samples)), labels))
                loss.backward()
                optimizer.step()
    """

    def __init__(
        self,
        collection: ShardedCollection,
        *,
        depth: int = 2,
        in_flight: int = 1,
        row_cache: RowCache | None = None,
    ) -> None:
        def settings() -> tuple[tuple[int, int], dict[str, int]]:
            if row_cache is not None:
                row_cache.check()
            ahead = check_int(depth, "depth", 1, DEPTH_MAX)
            steps = check_int(in_flight, "in_flight", 1, ahead + 1)
            return (ahead, steps), {"the depth": ahead, "the steps in flight": steps}

        ranks = collection.ranks
        self.collection = collection
        self.depth, self.in_flight = ranks.agree(settings, "the pipeline")
        self._ids = collection.exchange_beside()
        self._rows = collection.exchange_beside() if self.in_flight > 1 else None
        self._row_cache = row_cache
        self.cache_use = CacheUse()
        """Statistics of the row cache over all runs."""
        self._runs = False

    def run(self, batches: Iterable[tuple[RaggedBatch, _T]]) -> Generator[tuple[Prepared, _T]]:
        """Yield every batch, prepared for `collection.forward`, with the caller's value.

        A step ends when the next batch is requested. Closing the generator early drops open steps: gradients that arrive
        later change no row.

        Args:
            batches: Pairs of this rank's part of a batch and any value of the caller, such as labels. Every rank must
                have equally many. Another thread iterates over them.

        Raises:
            InvalidInput: On every rank, if the batch of one rank is invalid, or ranks have different numbers of batches.
                On this rank, if an earlier run of this pipeline is not over.
            ExchangeFailed: On every rank, if one rank could not read its rows, or its `batches` raised.
        """
        if self._runs:
            raise InvalidInput(
                "this pipeline already runs: close() the generator of its last run(), or create another pipeline"
            )
        self._runs = True
        try:
            if self.collection.unplaced:
                if self._row_cache is None:
                    first, batches = _drawn(batches)
                    self.collection.place(first)
                else:
                    # It keeps rows, and vectors are none.
                    self.collection.place_as(dict.fromkeys(self.collection.unplaced, "rows"))
            held = None
            if self._row_cache is not None:
                training = self.collection.trains_rows
                held = self.collection.held_rows(self._row_cache, self.cache_use, training=training)
            run = _Run[_T](self.collection, self._ids, self._rows, held, self.depth, self.in_flight)
            yield from run.batches(batches)
        finally:
            self._runs = False


def _drawn(
    batches: Iterable[tuple[RaggedBatch, _T]],
) -> tuple[list[RaggedBatch], Iterator[tuple[RaggedBatch, _T]]]:
    """The first batches, and an iterator over all, which raises where drawing one has raised."""
    stream = iter(batches)
    first: list[tuple[RaggedBatch, _T]] = []
    failure: Exception | None = None
    try:
        for drawn in islice(stream, PLANNED_BATCHES):
            first.append(drawn)
    except Exception as error:
        failure = error

    def again() -> Iterator[tuple[RaggedBatch, _T]]:
        yield from first
        if failure is not None:
            raise failure
        yield from stream

    return [batch for batch, _ in first], again()


class _Quota:
    """The number of batches that a thread may take. The thread takes all of them, even after `end`."""

    def __init__(self, allowed: int) -> None:
        self._changed = Condition()
        self._left = allowed
        self._ended = False

    def allow_one(self) -> None:
        with self._changed:
            self._left += 1
            self._changed.notify()

    def end(self) -> None:
        """Allow no further batches."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self) -> bool:
        """Wait until a batch is allowed; returns False if none is left and `end` was called."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or self._ended)
            self._left -= 1
            return self._left >= 0


class _Coming(Generic[_T]):
    """A prepared batch for the loop, and the step in which its rows were read."""

    def __init__(self, prepared: Prepared, beside: _T) -> None:
        self.prepared = prepared
        self.beside = beside
        self.step: Step | None = None

    def drop(self) -> None:
        if self.step is not None and self.step.open:
            self.step.finish(apply=False)


class _Run(Generic[_T]):
    """One pass over batches."""

    def __init__(
        self,
        collection: ShardedCollection,
        ids: Exchange,
        rows: Exchange | None,
        held: HeldRows | None,
        depth: int,
        in_flight: int,
    ) -> None:
        self._collection = collection
        self._training = (
            collection.trains_rows
        )  # Read here, because torch's grad mode is per thread.
        self._ids = ids
        self._rows = rows
        self._held = held
        self._ahead = _Quota(depth + 1)
        self._in_flight = _Quota(in_flight)
        self._asked: SimpleQueue[_Coming[_T] | BaseException | None] = SimpleQueue()
        self._ready = SimpleQueue[_Coming[_T] | BaseException | None]() if rows else self._asked
        self._begun = 0
        """Batches whose step has begun."""

    def batches(self, batches: Iterable[tuple[RaggedBatch, _T]]) -> Generator[tuple[Prepared, _T]]:
        threads = [self._thread("ids", lambda: self._ask(batches), self._asked)]
        if self._rows is not None:
            rows = self._rows
            threads.append(self._thread("rows", lambda: self._read(rows), self._ready))
        coming: _Coming[_T] | None = None
        try:
            while (coming := self._next()) is not None:
                if self._rows is None:
                    self._begun += 1
                yield coming.prepared, coming.beside
                coming = None
                self._in_flight.allow_one()
                self._ahead.allow_one()
        finally:
            self._in_flight.end()
            self._ahead.end()
            if coming is not None:
                coming.drop()
            # Drop ready steps while waiting for the threads: a read may wait for a row that such a step holds.
            while any(thread.is_alive() for thread in threads) or not self._ready.empty():
                with suppress(Empty):
                    left = self._ready.get(timeout=_LOOK_AGAIN_S)
                    if isinstance(left, _Coming):
                        left.drop()
            for thread in threads:
                thread.join()

    def _next(self) -> _Coming[_T] | None:
        coming = self._ready.get()
        if isinstance(coming, BaseException):
            raise coming
        return coming

    def _thread(
        self,
        what: str,
        work: Callable[[], None],
        out: SimpleQueue[_Coming[_T] | BaseException | None],
    ) -> Thread:
        def run() -> None:
            try:
                work()
                out.put(None)
            except BaseException as error:  # Raised again in the loop.
                out.put(error)

        # A daemon, so that the process can end even if the loop raised and never closed its generator.
        thread = Thread(target=run, name=f"rowmill-{what}-ahead", daemon=True)
        thread.start()
        return thread

    def _ask(self, batches: Iterable[tuple[RaggedBatch, _T]]) -> None:
        """The thread that sends the ids of batches to the owners of their rows."""
        collection, training = self._collection, self._training
        held = self._held
        looked_up = ((collection.look_up(batch), beside) for batch, beside in batches)
        number, stream = 0, with_next(looked_up, 0 if held is None else held.ahead)
        failed: Exception | None = None
        while self._ahead.take():
            try:
                if failed is not None:
                    raise failed
                (looked, beside), coming = next(stream)
            except StopIteration:
                self._ids.end(training=training)
                return
            except Exception as error:
                collection.prepare(error, self._ids, training=training)
                raise AssertionError("prepare() raises if it is given an error") from error
            reads = None
            if held is not None and not isinstance(looked.asked, Exception):
                reads = held.plan(looked, [later for later, _ in coming])
            prepared = collection.send_ids(looked, self._ids, training=training, reads=reads)
            # The first batch is read at once, so announcing it would fetch its rows twice.
            if number > 0:
                try:
                    collection.announce(prepared, steps=max(number - self._begun, 0) + 1)
                except Exception as error:
                    # Reported in place of the next ids, so that the other ranks raise too.
                    failed = error
            self._asked.put(_Coming(prepared, beside))
            number += 1

    def _read(self, rows: Exchange) -> None:
        """The thread that reads the rows of batches, at most `in_flight` steps ahead."""
        store = self._collection.trained_store if self._training else None
        while self._in_flight.take():
            coming = self._asked.get()
            if not isinstance(coming, _Coming):
                self._ready.put(coming)
                return
            self._begun += 1
            with (
                torch.set_grad_enabled(self._training),
                nullcontext() if store is None else store.forward() as coming.step,
            ):
                coming.prepared.pooled = self._collection.pool(coming.prepared, rows)
            self._ready.put(coming)
