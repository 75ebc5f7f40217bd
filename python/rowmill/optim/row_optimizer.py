"""`RowOptimizer`: updates of rows by `step()` instead of inside backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from rowmill.store.steps import Step
    from rowmill.store.tables import Table


class RowOptimizer(torch.optim.Optimizer):
    """Deferred update: rows are updated by `step()` instead of inside backward.

    Once it is created, backward passes only accumulate the gradients of its tables, also over several
    micro-batches. `parameters()` returns stand-in parameters, whose `.grad` is the gradient of the rows touched
    since the last step, `[rows, dim]`. Pass them to `clip_grad_norm_` together with the dense parameters.
    `GradScaler` and learning-rate schedulers work as with any torch optimizer.

    Unlike with dense parameters, `step()` consumes the gradients: it never applies them twice.
    The rows' clocks stay held from their forward to `step()` or `zero_grad()`.

    Args:
        params: A module, tables, or dicts `{"params": tables, "lr": ...}`.
        lr: Learning rate of groups without `"lr"`; None: each table's own.

    Raises:
        InvalidInput: `params` has no table, or another `RowOptimizer` has one of its tables.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Table] | Iterable[dict[str, Any]],
        *,
        lr: float | None = None,
    ) -> None:
        self._pending: dict[Tensor, _Pending] = {}
        groups: list[dict[str, Any]] = []
        for group in _groups(params):
            by_rate: dict[float, list[Table]] = {}
            for table in group["params"]:
                rate = group.get("lr", lr)
                by_rate.setdefault(table.lr if rate is None else rate, []).append(table)
            for rate, tables in by_rate.items():
                stand_ins = [self._stand_in(table) for table in tables]
                groups.append({**group, "params": stand_ins, "lr": rate})
        if not groups:
            raise InvalidInput(
                "RowOptimizer got no tables: pass tables, or a module with rowmill.nn modules"
            )
        super().__init__(groups, {"lr": lr})
        for pending in self._pending.values():
            pending.table.sink = self

    def _stand_in(self, table: Table) -> nn.Parameter:
        taken = any(pending.table is table for pending in self._pending.values())
        if taken or table.sink is not None:
            raise InvalidInput(
                f"table {table.name!r} is already updated by a RowOptimizer: use one, or call its detach()"
            )
        stand_in = nn.Parameter(torch.zeros(0, table.dim))
        self._pending[stand_in] = _Pending(table, stand_in)
        return stand_in

    @property
    def tables(self) -> list[Table]:
        """The tables that this optimizer updates."""
        return [pending.table for pending in self._pending.values()]

    def parameters(self) -> list[Tensor]:
        """Stand-in parameters, one per table: `.grad` is the gradient of the rows touched since the last step."""
        return list(self._pending)

    def accumulate(
        self, table: Table, ids: NDArray[np.int64], values: NDArray[np.float32], step: Step
    ) -> None:
        """Add gradients of distinct rows of a table; called when a backward pass is over."""
        for pending in self._pending.values():
            if pending.table is table:
                pending.add(ids, values, step)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore
        """Apply the accumulated gradients, one optimizer step per table, and release the clocks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for stand_in in group["params"]:
                self._pending[stand_in].apply(float(group["lr"]))
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the accumulated gradients and release their clocks."""
        for pending in self._pending.values():
            pending.drop()

    def detach(self) -> None:
        """Drop the accumulated gradients and release the tables, so that backward updates them again."""
        self.zero_grad()
        for pending in self._pending.values():
            pending.table.sink = None


class _Pending:
    """Row gradients of one table that await `step()`; their values are the stand-in's `.grad`."""

    def __init__(self, table: Table, stand_in: nn.Parameter) -> None:
        self.table = table
        self.stand_in = stand_in
        self.ids = torch.empty(0, dtype=torch.int64)
        self.held: list[Step] = []

    def add(self, ids: NDArray[np.int64], values: NDArray[np.float32], step: Step) -> None:
        more_ids, more = torch.from_numpy(ids), torch.from_numpy(values).view(-1, self.table.dim)
        if self.stand_in.grad is not None:
            both = torch.cat([self.ids, more_ids])
            gradient = self.stand_in.grad
            more_ids, more = _summed(both, torch.cat([gradient, more]))
        self._set(more_ids, more)
        if step not in self.held:
            step.hold()
            self.held.append(step)

    def _set(self, ids: Tensor, gradient: Tensor | None) -> None:
        self.ids = ids
        # torch requires the stand-in to have its gradient's shape; the expanded tensor takes no memory.
        self.stand_in.grad = None
        self.stand_in.data = torch.zeros(1).expand(len(ids), self.table.dim)
        self.stand_in.grad = gradient

    def apply(self, lr: float) -> None:
        gradient = self.stand_in.grad
        if gradient is None:
            return
        held, ids = self.held, self.ids
        try:
            ticket = next((step.ticket for step in held if step.open), None)
            self.table.core.rmw(ids.numpy(), gradient.contiguous().numpy(), lr, ticket)
        finally:
            self.drop()

    def drop(self) -> None:
        self._set(torch.empty(0, dtype=torch.int64), None)
        held, self.held = self.held, []
        for step in held:
            step.let_go()


def _summed(ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids and the sum of their values."""
    unique, place = cast("tuple[Tensor, Tensor]", torch.unique(ids, return_inverse=True))
    total = torch.zeros(len(unique), values.shape[1])
    return unique, total.index_add_(0, place, values)


def _groups(
    params: nn.Module | Iterable[Table] | Iterable[dict[str, Any]],
) -> list[dict[str, Any]]:
    from rowmill.nn import tables_of  # Here, because rowmill.nn imports this package.

    if isinstance(params, nn.Module):
        return [{"params": tables_of(params)}]
    listed = list(params)
    if all(isinstance(entry, dict) for entry in listed):
        return [dict(entry) for entry in listed if isinstance(entry, dict)]
    return [{"params": listed}]
