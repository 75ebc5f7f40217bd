"""The pooled lookup on the CPU: one call of the store for all tables of a group, without copies of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.ops import outputs
from rowmill.ops.floats import floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from rowmill import _core
    from rowmill.store.tables import Table


def lookup(
    tables: Sequence[Table],
    ids: Tensor,
    offsets: Tensor,
    weights: Tensor | None,
    features: Sequence[int],
    means: Sequence[bool],
    paddings: Sequence[int | None],
    bags: int,
    ticket: _core.Ticket | None,
    *,
    training: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, _core.Lookup | None]:
    """As `reference.lookup`, for the step of a ticket; a training get creates missing rows.

    Returns:
        The pooled vectors, `dtype` [bags, features * dim]; and for a training get the binding's object that
        applies their gradient.
    """
    dim = tables[0].dim
    out = outputs.empty(bags, len(features) * dim, dtype)
    core = tables[0].store.core.lookup(
        [table.core for table in tables],
        ids.contiguous().numpy(),
        offsets.contiguous().numpy(),
        None if weights is None else weights.detach().contiguous().numpy(),
        features,
        bags,
        paddings,
        means,
        floats(out),
        len(features) * dim,
        ticket,
        training,
    )
    return out, core
