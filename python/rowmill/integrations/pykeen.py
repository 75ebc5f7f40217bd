# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
"""PyKEEN models over stored rows: a `Representation` whose vectors are rows of a stored table.

This module needs PyKEEN, on which rowmill does not depend, so no other module of rowmill imports it. docs/frameworks.md
lists the differences from PyKEEN's own `Embedding`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rowmill._extras import extra
from rowmill.errors import InvalidInput
from rowmill.nn import Embedding

with extra("pykeen"):
    from pykeen.nn import Representation
    from pykeen.training import TrainingCallback

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rowmill.optim import RowOptimizer
    from rowmill.store.tables import Table

_FLOATS = {torch.float32: 1, torch.complex64: 2}
"""Number of 32-bit floats per element."""


class StoredRepresentation(Representation):
    """Vectors of entities or relations as rows of a stored table.

    In training mode, the backward pass updates the rows by the table's optimizer; torch's optimizer does not see them. In
    evaluation mode, a forward changes nothing, and an id without a row gives its initial value.

    Args:
        max_id: Number of ids; ids are in [0, max_id).
        shape: Shape of one vector; None: one dimension that uses the whole row.
        table: The stored table with the vectors.
        dtype: float32, or complex64, which takes two weights of a row per number.
        trainable: If False, rows are never changed.
        unique: Whether PyKEEN makes ids distinct before the lookup. Not needed: the store does it.
        kwargs: `normalizer`, `regularizer`, `dropout` and their arguments, as for every `Representation`.

    PyKEEN calls `reset_parameters` for every new model and every new training. It does not change the rows: the
    initializer of the table sets their initial values.

    Raises:
        InvalidInput: `dtype` is not supported, or `shape` or `max_id` does not match the table.
    """

    def __init__(
        self,
        max_id: int,
        shape: int | Sequence[int] | None = None,
        *,
        table: Table,
        dtype: torch.dtype = torch.float32,
        trainable: bool = True,
        unique: bool = False,
        **kwargs: Any,
    ) -> None:
        floats = _FLOATS.get(dtype)
        if floats is None:
            raise InvalidInput(f"dtype must be torch.float32 or torch.complex64, got {dtype}")
        if shape is None:
            shape = table.dim // floats
        shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if math.prod(shape) * floats != table.dim:
            raise InvalidInput(
                f"vectors of shape {shape} and {dtype} have {math.prod(shape) * floats} weights, but rows of table "
                f"{table.name!r} have {table.dim}: make the table with dim={math.prod(shape) * floats}"
            )
        if table.num_rows not in (None, max_id):
            raise InvalidInput(
                f"max_id = {max_id}, but table {table.name!r} has num_rows = {table.num_rows}: make the table with num_rows={max_id}"
            )
        super().__init__(max_id=max_id, shape=shape, unique=unique, **kwargs)
        self.rows = Embedding(max_id, table.dim, table=table, _freeze=not trainable)
        self._complex = floats == 2

    def _plain_forward(self, indices: Tensor | None = None) -> Tensor:
        ids = torch.arange(self.max_id) if indices is None else indices
        rows = self.rows(ids)
        if self._complex:
            return torch.view_as_complex(rows.view(*ids.shape, *self.shape, 2))
        return rows.view(*ids.shape, *self.shape)

    @property
    def device(self) -> torch.device:
        """Always the CPU, where the store is. Output vectors are on the device of the ids."""
        return torch.device("cpu")

    def iter_extra_repr(self) -> Iterable[str]:
        """The parts of `repr`, including the name of the table."""
        yield from super().iter_extra_repr()
        yield f"table={self.rows.table.name!r}"


class RowUpdates(TrainingCallback):
    """Training callback that updates rows once per batch, with PyKEEN's optimizer, instead of in each backward pass.

    Use it with `sub_batch_size`, where a batch has several backward passes, and with `automatic_memory_optimization`,
    which runs trial batches before training.

        rows = rowmill.optim.RowOptimizer(model)
        loop.train(factory, batch_size=1024, sub_batch_size=128, callbacks=RowUpdates(rows))

    Args:
        rows: The optimizer that accumulates the gradients of the model's rows.
    """

    def __init__(self, rows: RowOptimizer) -> None:
        super().__init__()
        self.rows = rows

    def pre_batch(self, **kwargs: Any) -> None:
        """Drop gradients that were accumulated outside a batch."""
        self.rows.zero_grad()

    def post_batch(self, epoch: int, batch: Any, **kwargs: Any) -> None:
        """Update the rows with the gradients of the batch."""
        self.rows.step()
