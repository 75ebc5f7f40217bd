"""Training steps: which lookups belong to a step, which gradients arrived, and when rows are updated.

A *step* holds one ticket of the store. Every training forward of a thread joins the thread's step,
so a row's clock is taken once per step, even if several modules read the row. Invariants:

- A table is updated once per step, with the sum of the gradients of all its lookups.
- Gradients are applied only after their backward pass has finished: a backward that raises
  changes no row.
- Clocks never outlive their step: an update, a dropped graph or a raised exception releases them.
- A forked child takes no lock of a step: another thread of its parent may have held it.

A step made with `store.step()` ends with its `with` block. An implicit step ends when none of its
lookups is outstanding. Before each forward or table read, a thread applies the gradients of its finished
backward passes, so it always reads its own updates. `store.forward()` makes an implicit step of the
lookups in its block, so that one thread may have several steps open.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from enum import Enum
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

import numpy as np
import torch

from rowmill.errors import StepConflict, StoreForked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill import _core
    from rowmill.store.tables import Table

    _RowGradients = tuple[NDArray[np.int64], NDArray[np.float32]]


class RowGradientSink(Protocol):
    """An optimizer that takes the row gradients of tables with deferred update."""

    def accumulate(
        self, table: Table, ids: NDArray[np.int64], values: NDArray[np.float32], step: Step
    ) -> None:
        """Add gradients of distinct rows to the pending ones; hold `step` until they are applied."""
        ...


class _Phase(Enum):
    OUTSTANDING = "no gradient yet"
    ARRIVED = "its gradient arrived, the backward pass still runs"
    READY = "its backward pass is over"
    DONE = "its gradient was applied, passed to an optimizer, or dropped"


class PooledLookup:
    """One fused lookup of a step over tables of one group, and later the gradient of its pooled vectors."""

    def __init__(self, core: _core.Lookup, features: Sequence[Table], row_stride: int) -> None:
        self.core = core
        self.features = features
        self.tables = tuple(dict.fromkeys(features))
        self.row_stride = row_stride
        self.gradient: Tensor | None = None
        self.phase = _Phase.OUTSTANDING

    @property
    def deferred(self) -> bool:
        """Whether an optimizer, and not backward, updates one of the tables."""
        return any(table.sink is not None for table in self.tables)

    def gradient_buffer(self) -> NDArray[np.float32]:
        """The gradient of the pooled vectors as a contiguous array for the binding."""
        assert self.gradient is not None
        return self.gradient.contiguous().numpy()

    def end(self) -> None:
        """Drop the gradient and mark the lookup as done."""
        self.gradient = None
        self.phase = _Phase.DONE


class LookupGuard:
    """Lives in the autograd graph of a lookup; informs the step when the graph is destroyed."""

    __slots__ = ("lookup", "step")

    def __init__(self, step: Step, lookup: PooledLookup) -> None:
        self.step = step
        self.lookup = lookup

    def arrive(self, gradient: Tensor) -> None:
        """Take the gradient of the pooled vectors; called by backward."""
        self.step.arrive(self.lookup, gradient)

    def __del__(self) -> None:
        self.step.forget(self.lookup)


class Step:
    """One training step on one store: a ticket, its lookups, and the gradients that came back."""

    def __init__(
        self, store: _core.Store, *, explicit: bool, event_time: int | None = None
    ) -> None:
        self._store = store
        self._explicit = explicit
        self._ticket: _core.Ticket | None = store.ticket(event_time)
        self._lock = threading.Lock()
        self._live: set[PooledLookup] = set()
        self._outstanding: Counter[Table] = Counter()
        self._arrived: dict[int, list[PooledLookup]] = {}
        self._ready: list[PooledLookup] = []
        self._summed: dict[Table, list[_RowGradients]] = {}
        self._forgotten: deque[PooledLookup] = deque()
        self._holds = 0

    @property
    def open(self) -> bool:
        """Whether the step still takes lookups."""
        return self._ticket is not None

    @property
    def ticket(self) -> _core.Ticket | None:
        """The step's ticket, or None after its end."""
        return self._ticket

    # Forward.

    def join(self) -> bool:
        """Keep the step open for a coming `add`; returns False if the step has already ended."""
        with self._lock:
            if self._ticket is None:
                return False
            self._holds += 1
            return True

    def add(self, core: _core.Lookup, features: Sequence[Table], row_stride: int) -> LookupGuard:
        """Register the lookup that `join` announced; the caller keeps the guard in the autograd graph."""
        lookup = PooledLookup(core, features, row_stride)
        with self._lock:
            self._holds -= 1
            self._live.add(lookup)
            self._outstanding.update(lookup.tables)
        self._look_again()
        return LookupGuard(self, lookup)

    def forget(self, lookup: PooledLookup) -> None:
        """Queue a lookup whose graph was destroyed. Runs in the garbage collector, so it never waits."""
        self._forgotten.append(lookup)
        # A thread that holds the lock checks the queue again after it releases the lock.
        while self._forgotten and self._lock.acquire(blocking=False):
            try:
                self._drain_forgotten()
            finally:
                self._lock.release()

    # Backward.

    def arrive(self, lookup: PooledLookup, gradient: Tensor) -> None:
        """Take the gradient of a lookup's pooled vectors; called inside a backward pass."""
        self._store.check_process()
        task = torch._C._current_graph_task_id()  # pyright: ignore[reportPrivateUsage]
        with self._lock:
            if lookup.phase is _Phase.DONE and not lookup.deferred:
                raise StepConflict(
                    "the gradient of this lookup was already applied, or its step is over: run every "
                    "backward pass of a forward inside one `with store.step():`, or use "
                    "rowmill.optim.RowOptimizer"
                )
            if lookup.phase is _Phase.OUTSTANDING:
                self._outstanding.subtract(lookup.tables)
            elif lookup.phase is _Phase.ARRIVED:  # An earlier backward pass raised.
                self._drop_arrived(lookup)
                lookup.gradient = None
            elif lookup.phase is _Phase.READY:  # A second backward pass within an explicit step.
                self._ready.remove(lookup)
            gradient = gradient.detach()
            lookup.gradient = gradient if lookup.gradient is None else lookup.gradient + gradient
            lookup.phase = _Phase.ARRIVED
            self._live.add(lookup)
            arrived = self._arrived.setdefault(task, [])
            arrived.append(lookup)
            if len(arrived) == 1:
                torch.autograd.Variable._execution_engine.queue_callback(  # pyright: ignore
                    lambda: self._backward_finished(task)
                )
        self._look_again()

    def _backward_finished(self, task: int) -> None:
        with self._lock:
            finished = self._arrived.pop(task, [])
            for lookup in finished:
                if lookup.deferred:
                    self._hand_on(lookup)
                else:
                    lookup.phase = _Phase.READY
                    self._ready.append(lookup)
            if not self._explicit:
                self._apply(wait_for_outstanding=True)
        self._look_again()

    # Ends.

    def flush(self) -> None:
        """Apply the gradients of finished backward passes, in an implicit step, even if other lookups are outstanding."""
        if self._explicit or not (self._ready or self._summed):
            return
        with self._lock:
            self._apply(wait_for_outstanding=False)
        self._look_again()

    def finish(self, *, apply: bool) -> None:
        """End the step: apply or drop the gradients of finished backward passes; release clocks."""
        if apply:
            self._store.check_process()
        elif _forked(self._store):
            return
        with self._lock:
            self._explicit = False  # If deferred gradients hold the step, `let_go` ends it later.
            try:
                if apply:
                    self._apply(wait_for_outstanding=False)
            finally:
                for lookup in self._live:
                    lookup.end()
                self._live.clear()
                self._ready.clear()
                self._summed.clear()
                self._arrived.clear()
                self._outstanding.clear()
                if not apply or self._holds == 0:
                    self._release()
        self._look_again()

    def hold(self) -> None:
        """Keep the clocks until `let_go`, because deferred gradients of this step await their optimizer."""
        self._holds += 1

    def let_go(self) -> None:
        """Undo one `join` or `hold`; the last call on an idle step ends the step."""
        if _forked(self._store):
            return
        with self._lock:
            self._holds -= 1
            self._end_if_idle()
        self._look_again()

    # Under the lock.

    def _apply(self, *, wait_for_outstanding: bool) -> None:
        """Update rows directly from pooled gradients; sum them first if several lookups use a table."""

        def waits(table: Table) -> bool:
            return wait_for_outstanding and self._outstanding[table] > 0

        lookups = [x for x in self._ready if not any(waits(table) for table in x.tables)]
        uses = Counter(table for lookup in lookups for table in lookup.tables)
        uses.update(self._summed.keys())
        try:
            for lookup in lookups:
                if all(uses[table] == 1 for table in lookup.tables):
                    rates = [table.lr for table in lookup.features]
                    gradient, stride = lookup.gradient_buffer(), lookup.row_stride
                    self._store.apply(lookup.core, gradient, stride, rates, self._ticket)
                else:
                    for table, gradients in self._row_gradients(lookup):
                        self._summed.setdefault(table, []).append(gradients)
            for table in [table for table in self._summed if not waits(table)]:
                parts = self._summed.pop(table)
                ids = np.concatenate([ids for ids, _ in parts])
                values = np.concatenate([values for _, values in parts])
                table.core.rmw(ids, values, table.lr, self._ticket)
        finally:  # Applied or refused (NaN or infinite gradients): never retried.
            for lookup in lookups:
                self._ready.remove(lookup)
                self._live.discard(lookup)
                lookup.end()
            self._end_if_idle()

    def _hand_on(self, lookup: PooledLookup) -> None:
        """Pass gradients to the optimizers of their tables; keep those of tables without one in the step."""
        # No check for overflow of a scaled loss here: the optimizer (or GradScaler) does it.
        for table, (ids, values) in self._row_gradients(lookup):
            if table.sink is None:
                self._summed.setdefault(table, []).append((ids, values))
            else:
                table.sink.accumulate(table, ids, values, self)
        self._live.discard(lookup)
        lookup.end()

    def _row_gradients(self, lookup: PooledLookup) -> Iterator[tuple[Table, _RowGradients]]:
        gradient, stride = lookup.gradient_buffer(), lookup.row_stride
        parts = self._store.row_gradients(lookup.core, gradient, stride)
        for table, (ids, values) in zip(lookup.tables, parts, strict=True):
            yield table, (np.frombuffer(ids, np.int64), np.frombuffer(values, np.float32))

    def _drain_forgotten(self) -> None:
        while self._forgotten:
            lookup = self._forgotten.popleft()
            if lookup.phase is _Phase.OUTSTANDING:
                self._outstanding.subtract(lookup.tables)
            elif lookup.phase is _Phase.ARRIVED:  # The backward pass raised.
                self._drop_arrived(lookup)
            else:  # The usual end of a graph.
                continue
            self._live.discard(lookup)
            lookup.end()
        self._end_if_idle()

    def _drop_arrived(self, lookup: PooledLookup) -> None:
        for arrived in self._arrived.values():
            if lookup in arrived:
                arrived.remove(lookup)

    def _end_if_idle(self) -> None:
        idle = not (self._live or self._summed or self._holds)
        if idle and not self._explicit:
            self._release()

    def _release(self) -> None:
        if self._ticket is not None:
            self._ticket.release()
            self._ticket = None

    def _look_again(self) -> None:
        """Process lookups that the garbage collector queued while the lock was held."""
        if self._forgotten:
            with self._lock:
                self._drain_forgotten()


class _ThreadState(threading.local):
    step: Step | None = None
    explicit: bool = False


class StepKeeper:
    """The steps of one store, one per thread at a time."""

    def __init__(self, store: _core.Store) -> None:
        self._store = store
        self._thread = _ThreadState()
        self._steps: WeakSet[Step] = WeakSet()
        self._steps_lock = threading.Lock()

    def join(self) -> Step:
        """The step for a training forward of this thread, kept open until `add` or `let_go`."""
        self.flush()
        step = self._thread.step
        while step is None or not step.join():
            if self._thread.explicit:
                raise StepConflict(
                    "the block `with store.step()` of this thread was left on another thread: leave it on this one"
                )
            step = self._start(explicit=False)
        return step

    @property
    def ticket(self) -> _core.Ticket | None:
        """The ticket of this thread's open step, or None."""
        step = self._thread.step
        return None if step is None else step.ticket

    def flush(self) -> None:
        """Apply the gradients of this thread's finished backward passes, before it reads rows."""
        step = self._thread.step
        if step is not None and not inside_backward():
            self._store.check_process()
            step.flush()

    def flush_all(self) -> None:
        """Apply the gradients of finished backward passes of all threads, before a checkpoint."""
        self._store.check_process()
        with self._steps_lock:
            steps = list(self._steps)
        for step in steps:
            step.flush()

    def begin(self, event_time: int | None) -> Step:
        """Start an explicit step on this thread."""
        self._store.check_process()
        if self._thread.explicit:
            raise StepConflict(
                "this thread already runs a step, and `store.step()` does not nest: leave the outer block first"
            )
        if self._thread.step is not None and self._thread.step.open:
            self._thread.step.finish(apply=True)
        step = self._start(explicit=True, event_time=event_time)
        self._thread.explicit = True
        return step

    def end(self, step: Step, *, apply: bool) -> None:
        """End the explicit step of this thread."""
        self._thread.explicit = False
        step.finish(apply=apply)

    def begin_forward(self, event_time: int | None) -> tuple[Step, Step | None]:
        """Start a step that ends with its own backward; also returns the thread's previous step, for `end_forward`."""
        self._store.check_process()
        if self._thread.explicit:
            raise StepConflict(
                "`store.forward()` was called within `store.step()` of the same thread: call it outside that block"
            )
        before = self._thread.step
        step = self._start(explicit=False, event_time=event_time)
        step.join()  # Keeps the step open between the lookups of the block.
        return step, before

    def end_forward(self, step: Step, before: Step | None) -> None:
        """Close the step to further lookups; the thread returns to its previous step."""
        self._thread.step = before
        step.let_go()

    def _start(self, *, explicit: bool, event_time: int | None = None) -> Step:
        step = self._thread.step = Step(self._store, explicit=explicit, event_time=event_time)
        with self._steps_lock:
            self._steps.add(step)
        return step


class ExplicitStep:
    """`with store.step():`, the context manager."""

    def __init__(self, keeper: StepKeeper, event_time: int | None) -> None:
        self._keeper = keeper
        self._event_time = event_time
        self._step: Step | None = None

    def __enter__(self) -> Step:
        self._step = self._keeper.begin(self._event_time)
        return self._step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._step is not None
        self._keeper.end(self._step, apply=kind is None)


class ForwardStep:
    """`with store.forward():`, the context manager."""

    def __init__(self, keeper: StepKeeper, event_time: int | None) -> None:
        self._keeper = keeper
        self._event_time = event_time
        self._steps: tuple[Step, Step | None] | None = None

    def __enter__(self) -> Step:
        self._steps = self._keeper.begin_forward(self._event_time)
        return self._steps[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._steps is not None
        self._keeper.end_forward(*self._steps)


def _forked(store: _core.Store) -> bool:
    """Whether this process is a forked child of the one that opened the store."""
    try:
        store.check_process()
    except StoreForked:
        return True
    return False


def inside_backward() -> bool:
    """Whether this thread runs a backward pass; a forward recomputed there belongs to the current step."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]
