"""Lookups for coming steps, made while the training loop works on earlier ones.

A thread makes the lookups in the order of the steps, each in a store step of its own (`Store.forward`). The loop takes
their results and ends the steps in the same order. The store enforces the staleness bound: a lookup waits until every
row is within the bound of its table. At bound 0 the results are bit-identical to one step at a time.
"""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Semaphore, Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from rowmill.store.steps import Step
    from rowmill.store.store import Store

    _LookedUp = tuple[Any, Any, Step]

_LOOK_AGAIN_S = 0.01


class StepsInFlight:
    """Runs at most `in_flight` steps at a time; a step in flight is looked up and not yet updated."""

    def __init__(self, store: Store, look_up: Callable[[Any], Any], in_flight: int) -> None:
        self._store = store
        self._look_up_rows = look_up
        self._in_flight = in_flight
        self.waited_s = 0.0
        """Seconds that the loop waited for lookups."""
        self.ends = False

    def end(self) -> None:
        """Begin no further step: `run` yields those that were looked up."""
        self.ends = True

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Any]]:
        """Yield pairs of a batch and its looked-up rows; all steps are finished when the generator is exhausted.

        Requesting the next pair finishes the current step. Closing the generator early drops the open steps: their
        gradients are not applied.
        """
        ready: SimpleQueue[_LookedUp | BaseException | None] = SimpleQueue()
        free = Semaphore(self._in_flight)
        closed = Event()
        thread = Thread(
            target=self._look_up, args=(batches, ready, free, closed), name="rowmill-in-flight"
        )
        thread.start()
        step: Step | None = None
        try:
            while (looked_up := self._next(ready)) is not None:
                batch, rows, step = looked_up
                del looked_up
                yield batch, rows
                del batch, rows
                free.release()
        finally:
            closed.set()
            free.release()
            _drop(step)
            # The lookup thread may wait for the clock of a row that an open step holds, so drop them while joining.
            while thread.is_alive() or not ready.empty():
                with suppress(Empty):
                    left = ready.get(timeout=_LOOK_AGAIN_S)
                    if isinstance(left, tuple):
                        _drop(left[2])
            thread.join()

    def _next(self, ready: SimpleQueue[_LookedUp | BaseException | None]) -> _LookedUp | None:
        since = time.perf_counter()
        looked_up = ready.get()
        self.waited_s += time.perf_counter() - since
        if isinstance(looked_up, BaseException):
            raise looked_up
        return looked_up

    def _look_up(
        self,
        batches: Iterable[Any],
        ready: SimpleQueue[_LookedUp | BaseException | None],
        free: Semaphore,
        closed: Event,
    ) -> None:
        try:
            for batch in batches:
                free.acquire()
                if closed.is_set():
                    return
                if self.ends:
                    break
                with self._store.forward() as step:
                    rows = self._look_up_rows(batch)
                ready.put((batch, rows, step))
                del rows
            ready.put(None)
        except BaseException as error:  # Raised again in the loop.
            ready.put(error)


def _drop(step: Step | None) -> None:
    if step is not None and step.open:
        step.finish(apply=False)
