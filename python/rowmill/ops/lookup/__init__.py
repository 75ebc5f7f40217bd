"""The pooled lookup: pools rows of ids into vectors, and passes gradients to the training step of the lookup.

Eager calls go to the store directly, because torch's dispatcher would add 0.1-0.2 ms to a lookup of 26
tables. A traced call in evaluation (torch.export, torch.compile) records the operator `rowmill::lookup`,
which creates no rows and takes no clocks. A training call has side effects that a graph cannot record, so
torch.compile breaks the graph there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.ops.handles import table_of
from rowmill.ops.lookup import cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rowmill.store.steps import LookupGuard
    from rowmill.store.tables import Table

    _Plan = tuple[
        Sequence[Table], Sequence[int], Sequence[bool], Sequence[int | None], int, torch.dtype
    ]

__all__ = ["lookup", "lookup_rows"]

# Older versions of torch have no such function, and rowmill exports with newer ones only.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)

torch.library.define(
    "rowmill::lookup",
    "(Tensor ids, Tensor offsets, Tensor? weights, int[] tables, int[] features, bool[] means, "
    "bool[] padded, int[] paddings, SymInt bags, int dim, ScalarType dtype) -> Tensor",
)


@torch.library.impl("rowmill::lookup", "CPU")
def _lookup_operator(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    tables: Sequence[int],
    features: Sequence[int],
    means: Sequence[bool],
    padded: Sequence[bool],
    paddings: Sequence[int],
    bags: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    # Two lists, because a schema has no list of optional integers, and every integer may be an id.
    pads = [padding if has else None for has, padding in zip(padded, paddings, strict=True)]
    opened = [table_of(handle) for handle in tables]
    return _evaluate((opened, features, means, pads, bags, dtype), ids, offsets, weights)


@torch.library.register_fake("rowmill::lookup")  # pyright: ignore[reportUntypedFunctionDecorator]
def _lookup_shape(
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    tables: Sequence[int],
    features: Sequence[int],
    means: Sequence[bool],
    padded: Sequence[bool],
    paddings: Sequence[int],
    bags: int,
    dim: int,
    dtype: torch.dtype,
) -> Tensor:
    return ids.new_empty((bags, len(features) * dim), dtype=dtype)


def lookup(
    tables: Sequence[Table],
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    *,
    features: Sequence[int],
    means: Sequence[bool],
    paddings: Sequence[int | None],
    bags: int,
    training: bool,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Pool rows of tables of one group, as defined by `ops.lookup.reference`.

    Args:
        tables: One table per feature; several features may share a table.
        ids: int64 [N]. All tensors are on the CPU.
        offsets: int64 [features in the batch * bags + 1].
        weights: float32 [N] or None. It receives gradients.
        features: Positions of the features to pool in the batch.
        means: Per feature, whether its bags are averaged.
        paddings: Per feature, the padding id, or None.
        bags: Number of bags per feature.
        training: Whether this is a training get, which creates missing rows, takes clocks, and updates the
            rows with the gradient.
        dtype: float32 or bfloat16, to which sums are rounded.

    Returns:
        `dtype` [bags, features * dim].

    Raises:
        InvalidInput: `training` is true while torch.export exports the model.
    """
    plan = (tables, features, means, paddings, bags, dtype)
    if training and _is_exporting():
        raise InvalidInput(
            "an exported lookup cannot train rows: call model.eval() before torch.export.export"
        )
    if torch.is_grad_enabled() and (training or (weights is not None and weights.requires_grad)):
        return _recorded_lookup(plan, ids, offsets, weights, training)
    if torch.compiler.is_compiling() or type(ids) is not Tensor:
        return torch.ops.rowmill.lookup(
            ids,
            offsets,
            weights,
            [table.handle for table in tables],
            list(features),
            list(means),
            [padding is not None for padding in paddings],
            [padding or 0 for padding in paddings],
            bags,
            tables[0].dim,
            dtype,
        )
    return _evaluate(plan, ids, offsets, weights)


def _evaluate(plan: _Plan, ids: Tensor, offsets: Tensor, weights: Tensor | None) -> Tensor:
    """Pool rows without changing any. Within a step of this thread, it counts as a read of that step."""
    tables, features, means, paddings, bags, dtype = plan
    steps = tables[0].store.steps
    steps.flush()
    arguments = (tables, ids, offsets, weights, features, means, paddings, bags)
    return cpu.lookup(*arguments, steps.ticket, training=False, dtype=dtype)[0]


def lookup_rows(
    tables: Sequence[Table],
    ids: Tensor,
    counts: Sequence[int],
    times: Tensor,
    out: Tensor,
    *,
    training: bool,
) -> LookupGuard | None:
    """Copy rows of T tables of one group in one call, outside autograd; used by the owner of an exchange.

    Args:
        tables: The T tables.
        ids: int64 [U], ordered by table; distinct within a table.
        counts: Number of ids of each table.
        times: int32 [U], number of lookups of each id, for statistics.
        out: float32 [U * dim], into which rows are written in the order of the ids.
        training: Whether this is a training get.

    Returns:
        In training, the guard whose `arrive` takes the gradient of the rows, in the layout of `out`, within a
        backward pass. Otherwise None.
    """
    steps = tables[0].store.steps
    core = tables[0].store.core
    cores = [table.core for table in tables]
    flat = ids.numpy(), counts, times.numpy(), out.numpy()
    if not training:
        steps.flush()
        core.lookup_rows(cores, *flat, steps.ticket, training=False)
        return None
    step = steps.join()
    try:
        looked_up = core.lookup_rows(cores, *flat, step.ticket, training=True)
    except BaseException:
        step.let_go()
        raise
    assert looked_up is not None
    return step.add(looked_up, tables, tables[0].dim)


def _record(
    plan: _Plan, ids: Tensor, offsets: Tensor, weights: Tensor | None, training: bool
) -> Tensor:
    out = _Lookup.apply(_anchor if training else None, weights, ids, offsets, plan)
    assert isinstance(out, Tensor)
    return out


_outside_graphs: Callable[..., Tensor] | None = None
"""`_record` outside compiled graphs, because its side effects cannot be traced."""


def _recorded_lookup(*arguments: Any) -> Tensor:
    # The first training lookup makes it: this imports torch's compiler, which takes seconds.
    global _outside_graphs
    if _outside_graphs is None:
        disabled: Callable[..., Tensor] = cast("Any", torch.compiler.disable)(_record)
        _outside_graphs = disabled
    return _outside_graphs(*arguments)


_anchor = torch.empty(0, requires_grad=True)
"""An input with `requires_grad`, so that autograd records the lookup: rows are not tensors of the graph."""


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor | None, weights: Tensor | None, *rest: Any) -> Tensor:
        ids, offsets, (tables, features, means, paddings, bags, dtype) = rest
        steps = tables[0].store.steps
        arguments = (tables, ids, offsets, weights, features, means, paddings, bags)
        ctx.guard = None
        if anchor is None:
            out = _evaluate(rest[2], ids, offsets, weights)
        else:
            step = steps.join()
            try:
                out, core = cpu.lookup(*arguments, step.ticket, training=True, dtype=dtype)
            except BaseException:
                step.let_go()
                raise
            assert core is not None
            ctx.guard = step.add(core, tables, out.shape[1])
        ctx.rows = None
        if ctx.needs_input_grad[1]:
            ctx.rows = _rows_of(tables, ids, offsets, features, paddings, bags)
            ctx.features, ctx.length = features, len(ids)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradient.float()
        if ctx.guard is not None:
            ctx.guard.arrive(gradient)
        weights_gradient = None
        if ctx.rows is not None:
            weights_gradient = torch.zeros(ctx.length)
            for position, (place, bag_of_id, rows) in enumerate(ctx.rows):
                dim = rows.shape[1]
                columns = gradient[:, position * dim : (position + 1) * dim]
                weights_gradient[place] = (columns[bag_of_id] * rows).sum(dim=1)
        return None, weights_gradient, None, None, None


def _rows_of(
    tables: Sequence[Table],
    ids: Tensor,
    offsets: Tensor,
    features: Sequence[int],
    paddings: Sequence[int | None],
    bags: int,
) -> list[tuple[slice, Tensor, Tensor]]:
    """Copies of the looked-up rows, per feature, for the gradient of per-sample weights."""
    out: list[tuple[slice, Tensor, Tensor]] = []
    ids_N, all_ends = ids.numpy(), offsets.numpy()
    for table, padding, feature in zip(tables, paddings, features, strict=True):
        ends = all_ends[feature * bags : (feature + 1) * bags + 1]
        place = slice(int(ends[0]), int(ends[-1]))
        feature_ids = ids_N[place]
        rows = np.zeros((len(feature_ids), table.dim), np.float32)
        wanted = slice(None) if padding is None else feature_ids != padding
        rows[wanted] = table.core_get(np.ascontiguousarray(feature_ids[wanted]))
        bag_of_id = torch.from_numpy(np.repeat(np.arange(bags), np.diff(ends)))
        out.append((place, bag_of_id, torch.from_numpy(rows)))
    return out
