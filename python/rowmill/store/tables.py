"""A table of a store: rows by id, as torch tensors or NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.ops import handles
from rowmill.size import check_int
from rowmill.store.eviction import admission_from_dict, eviction_from_dict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rowmill import _core
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.eviction import Admission, Eviction
    from rowmill.store.steps import RowGradientSink, Step
    from rowmill.store.store import Store

Ids = Tensor | np.ndarray[Any, Any] | Sequence[int]
"""int64 ids (or uint64 in NumPy) of any shape."""

Values = Tensor | np.ndarray[Any, Any]
"""float32, with one more dimension than the ids."""

Numbers = Values | Sequence[Any]
"""Values as a tensor, an array, or lists of numbers."""


Destination = Literal["buffer", "cache"]
"""Where lookahead keeps rows: see `Store.lookahead`."""


Dtype = Literal["fp32", "bf16", "split-bf16"]
"""How weights are stored: see `Store.table`."""


class Table:
    """A table: per 64-bit id, a row of `dim` weights, read as float32, and their optimizer state.

    Created by `Store.table`. Ids are int64 tensors or arrays (all 64 bits count), weights float32.
    Contiguous CPU tensors and arrays are read and written in place, without a copy. Results are tensors
    if the ids are a tensor, and NumPy arrays otherwise.

    Training reads take an explicit `ticket` (`store.ticket()`). `get` never creates rows and never waits.
    """

    def __init__(self, store: Store, core: _core.Table, optimizer: OptimizerSpec) -> None:
        self.store = store
        self.core = core
        self.name: str = core.name
        self.dim: int = core.dim
        self.dtype: Dtype = core.dtype
        """How weights are stored."""
        self.num_rows: int | None = core.dense_rows
        """Ids are in [0, num_rows); None: any 64-bit id."""
        self.staleness_bound: int | None = core.staleness_bound
        self.group: int = core.group
        """Tables of one group share one fused lookup."""
        self.eviction: Eviction | None = eviction_from_dict(core.eviction)
        self.admission: Admission | None = admission_from_dict(core.admission)
        self.optimizer: OptimizerSpec = optimizer
        self.lr: float = optimizer.lr
        """Learning rate of the next updates; initially the optimizer's."""
        self.sink: RowGradientSink | None = None
        """The `RowOptimizer` that applies this table's gradients; None: backward applies them."""
        self.handle: int = handles.register(self)

    def __repr__(self) -> str:
        ids = "" if self.num_rows is None else f", num_rows={self.num_rows}"
        dtype = "" if self.dtype == "fp32" else f", dtype={self.dtype!r}"
        return f"Table({self.name!r}, dim={self.dim}{dtype}{ids}, optimizer={self.optimizer})"

    def __len__(self) -> int:
        """Number of rows, in memory or on disk."""
        self.store.steps.flush()
        return self.core.len()

    # Reading.

    @overload
    def get(self, ids: Tensor, *, out: Tensor | None = None) -> Tensor: ...
    @overload
    def get(
        self, ids: np.ndarray[Any, Any] | Sequence[int], *, out: np.ndarray[Any, Any] | None = None
    ) -> NDArray[np.float32]: ...
    def get(self, ids: Ids, *, out: Values | None = None) -> Values:
        """Read weights without creating rows: an id without a row gives its initial value.

        Within a step of this thread (`store.step()`, `store.forward()`) it counts as a read of the rows that
        `lookahead` announced for the step.

        Args:
            ids: int64, any shape.
            out: float32 `[*ids.shape, dim]`, written in place if given.

        Returns:
            float32 `[*ids.shape, dim]`.
        """
        self.store.steps.flush()
        out, ids_N, out_ND = self._output(ids, out)
        self.core.get(ids_N, out_ND, self.store.steps.ticket)
        return out

    @overload
    def get_or_init(
        self, ids: Tensor, *, out: Tensor | None = None, ticket: Ticket | None = None
    ) -> Tensor: ...
    @overload
    def get_or_init(
        self,
        ids: np.ndarray[Any, Any] | Sequence[int],
        *,
        out: np.ndarray[Any, Any] | None = None,
        ticket: Ticket | None = None,
    ) -> NDArray[np.float32]: ...
    def get_or_init(
        self, ids: Ids, *, out: Values | None = None, ticket: Ticket | None = None
    ) -> Values:
        """Read weights; create missing rows. With a ticket this is a training get.

        A training get waits until each row is within the staleness bound, and takes its clock. A `put` or
        `rmw` with the same ticket releases the clock.

        Args:
            ids: int64, any shape.
            out: float32 `[*ids.shape, dim]`, written in place if given.
            ticket: Ticket of the training step.

        Returns:
            float32 `[*ids.shape, dim]`.

        Raises:
            StalenessTimeout: A row stayed beyond its bound until the deadline.
        """
        self.store.steps.flush()
        out, ids_N, out_ND = self._output(ids, out)
        self.core.get_or_init(ids_N, out_ND, _core_ticket(ticket))
        return out

    def get_later(self, ids: Ids, *, ticket: Ticket) -> QueuedRows:
        """Queue a training get and return at once.

        Use it in a thread whose earlier step still lacks its `put` or `rmw`: waiting for a row that the
        thread itself holds would deadlock. The get runs as soon as every row is within its bound.
        """
        self.store.steps.flush()
        ids_N, shape, is_tensor = as_ids(ids)
        queued = self.core.get_later(ids_N, ticket.core)
        return QueuedRows(queued, (*shape, self.dim), tensor=is_tensor)

    def contains(self, ids: Ids) -> Values:
        """Whether each id has a row: bool, in the shape of the ids."""
        self.store.steps.flush()
        ids_N, shape, is_tensor = as_ids(ids)
        found = np.frombuffer(self.core.contains(ids_N), np.bool_).reshape(shape)
        return torch.from_numpy(found) if is_tensor else found

    def scan(self, *, batch_rows: int = 16_384) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Iterate over all rows in batches of `(ids [n], weights [n, dim])`, in no particular order.

        A row that changes during the scan may show its old or new value. A row created or deleted during the
        scan may or may not be included.
        """
        self.store.steps.flush()
        batch_rows = check_int(batch_rows, "batch_rows", 1, 2**31)
        for ids, weights in self.core.scan(batch_rows):
            rows = np.frombuffer(weights, np.float32).reshape(-1, self.dim)
            yield np.frombuffer(ids, np.int64), rows

    def hottest(self, count: int = 10) -> list[tuple[int, int]]:
        """The ids looked up most often, with estimated lookups, in descending order; from a sample."""
        return self.core.hottest(check_int(count, "count", 0, 2**31))

    # Changing.

    def put(self, ids: Ids, values: Numbers, *, ticket: Ticket | None = None) -> None:
        """Set weights. The last of duplicate ids wins. Optimizer state does not change."""
        self.store.steps.flush()
        ids_N, shape, _ = as_ids(ids)
        values = as_floats(values, "values")
        self._check_shape("values", values, shape)
        self.core.put(ids_N, values, _core_ticket(ticket))

    def rmw(
        self,
        ids: Ids,
        gradients: Numbers,
        *,
        lr: float | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Update rows by one optimizer step. Gradients of duplicate ids are summed.

        Args:
            ids: int64, any shape.
            gradients: float32 `[*ids.shape, dim]`.
            lr: Learning rate; None: `table.lr`.
            ticket: Ticket of the training get, whose clocks are released.
        """
        self.store.steps.flush()
        ids_N, shape, _ = as_ids(ids)
        gradients = as_floats(gradients, "gradients")
        self._check_shape("gradients", gradients, shape)
        rate = self.lr if lr is None else lr
        self.core.rmw(ids_N, gradients, rate, _core_ticket(ticket))

    def delete(self, ids: Ids) -> int:
        """Delete rows and their optimizer state; returns the number of rows deleted."""
        self.store.steps.flush()
        return self.core.delete(as_ids(ids)[0])

    def evict(self) -> NDArray[np.int64]:
        """Delete rows by the table's eviction rule; returns their ids, sorted as unsigned.

        Rows whose clock a step holds stay. The call blocks changes of rows and reads every row, cold rows included.
        """
        self.store.steps.flush()
        return np.frombuffer(self.core.evict(), np.int64)

    def set_scores(self, ids: Ids, scores: Numbers) -> None:
        """Set the scores that `LowestScore` compares, one float per id. The last of duplicate ids wins."""
        self.store.steps.flush()
        self.core.set_scores(as_ids(ids)[0], as_floats(scores, "scores"))

    def lookahead(self, ids: Ids, *, into: Destination = "buffer", steps: int = 1) -> bool:
        """Prefetch rows of coming batches into memory; see `Store.lookahead`."""
        return self.store.lookahead({self: ids}, into=into, steps=steps)

    # Optimizer state.

    def get_state(self, ids: Ids) -> NDArray[np.float32]:
        """Optimizer state as stored, `[n, floats of state]`; an id without a row gives the state of a new row."""
        self.store.steps.flush()
        ids_N, _, _ = as_ids(ids)
        out = np.empty((len(ids_N), self.core.state_floats), np.float32)
        self.core.get_state(ids_N, out)
        return out

    def put_state(self, ids: Ids, state: Numbers) -> None:
        """Set the optimizer state, `[n, floats of state]`, of existing rows."""
        self.store.steps.flush()
        self.core.put_state(as_ids(ids)[0], as_floats(state, "state"))

    def core_get(self, ids_N: NDArray[np.int64]) -> NDArray[np.float32]:
        """`get` for callers that are already inside a step: it does not apply pending gradients first."""
        out = np.empty((len(ids_N), self.dim), np.float32)
        self.core.get(ids_N, out, None)
        return out

    def _check_shape(self, name: str, values: NDArray[np.float32], ids: tuple[int, ...]) -> None:
        # A flat list is accepted; the binding checks its length.
        if values.ndim > 1 and values.shape != (*ids, self.dim):
            raise InvalidInput(
                f"{name} must have shape {(*ids, self.dim)}, shape of the ids plus dim, got {values.shape}"
            )

    def _output(
        self, ids: Ids, out: Values | None
    ) -> tuple[Values, NDArray[np.int64], NDArray[np.float32]]:
        ids_N, shape, is_tensor = as_ids(ids)
        shape = (*shape, self.dim)
        if out is None:
            out = torch.empty(shape) if is_tensor else np.empty(shape, np.float32)
        elif not hasattr(out, "shape"):
            raise InvalidInput(f"out must be a tensor or a NumPy array, got {type(out).__name__}")
        elif tuple(out.shape) != shape:
            raise InvalidInput(f"out must have shape {shape}, got {tuple(out.shape)}")
        array = out.detach().numpy() if isinstance(out, Tensor) else out
        return out, ids_N, array


class QueuedRows:
    """The result of `get_later`."""

    def __init__(self, core: _core.QueuedGet, shape: tuple[int, ...], *, tensor: bool) -> None:
        self._core = core
        self._shape = shape
        self._tensor = tensor

    @property
    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        return self._core.is_ready()

    def wait(self) -> Values:
        """Wait for the weights, float32 `[*ids.shape, dim]`, a tensor if the ids were one. Call it once.

        Raises:
            StalenessTimeout: A row stayed beyond its bound until the deadline.
            StepConflict: Two steps wait for rows of each other, or the ticket was released.
        """
        values = np.frombuffer(self._core.wait(), np.float32).reshape(self._shape)
        return torch.from_numpy(values) if self._tensor else values


class Ticket:
    """A training step's hold on the clocks of rows, for use with `get_or_init`, `put` and `rmw`.

    It is a context manager: leaving it releases every clock still held.
    """

    def __init__(self, core: _core.Ticket) -> None:
        self.core = core

    def release(self) -> None:
        """Release all clocks."""
        self.core.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.core.release()


def as_ids(ids: Ids) -> tuple[NDArray[np.int64], tuple[int, ...], bool]:
    """Convert ids to flat, contiguous int64; also returns their shape and whether they were a tensor."""
    if isinstance(ids, Tensor):
        if ids.dtype != torch.int64:
            raise InvalidInput(f"ids must be int64, got a tensor of {ids.dtype}")
        flat = ids.detach().cpu().contiguous().numpy().reshape(-1)
        return flat, tuple(ids.shape), True
    array = _as_array(ids, "ids", None)
    if array.size == 0 and not isinstance(ids, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype == np.uint64:
        array = array.view(np.int64)
    if array.dtype != np.int64:
        raise InvalidInput(f"ids must be int64 or uint64, got {array.dtype}")
    return np.ascontiguousarray(array).reshape(-1), array.shape, False


def as_floats(values: Numbers, name: str) -> NDArray[np.float32]:
    """Convert values to contiguous float32; raise `InvalidInput` about `name` for another dtype."""
    if isinstance(values, Tensor):
        if values.dtype != torch.float32:
            raise InvalidInput(f"{name} must be float32, got a tensor of {values.dtype}")
        return values.detach().cpu().contiguous().numpy()
    array = _as_array(values, name, None if isinstance(values, np.ndarray) else np.float32)
    if array.dtype != np.float32:
        raise InvalidInput(f"{name} must be float32, got {array.dtype}")
    return np.ascontiguousarray(array)


def _as_array(values: Any, name: str, dtype: Any) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(values, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{name} must be numbers in a regular shape: {error}") from None


def _core_ticket(ticket: Ticket | Step | None) -> _core.Ticket | None:
    if ticket is None:
        return None
    core = ticket.core if isinstance(ticket, Ticket) else ticket.ticket
    if core is None:
        raise InvalidInput("ticket: its step is over; take a new one with store.ticket()")
    return core
