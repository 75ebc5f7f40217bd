# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false
"""PyKEEN models over stored rows: a `Representation` whose vectors are rows of a table.

The only module of rowmill, with `rowmill.integrations.pyg`, that imports a package which rowmill does not depend on; nothing else
imports it. What differs from PyKEEN's own `Embedding` is in docs/frameworks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.nn import Embedding

try:
    from pykeen.nn import Representation
    from pykeen.training import TrainingCallback
except ImportError as error:
    raise ImportError(
        f"rowmill.integrations.pykeen needs PyKEEN ({error}): pip install 'rowmill[pykeen]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rowmill.optim import RowOptimizer
    from rowmill.store.tables import Table

_FLOATS = {torch.float32: 1, torch.complex64: 2}
"""32-bit floats of a number."""


class StoredRepresentation(Representation):
    """Vectors of entities, or of relations, as rows of a table.

    In training mode a forward is a training get and its backward updates the rows, by the table's optimizer; torch's
    optimizer never sees them. Otherwise nothing changes, and an id without a row shows its initial value.

    Args:
        max_id: Ids are 0..max_id.
        shape: Of one vector; None: as many numbers as the table's rows hold.
        table: Where the vectors live.
        dtype: float32, or complex64, whose real and imaginary parts take two weights of a row.
        trainable: False: never change a row.
        unique: Whether ids are made distinct before they are looked up; the store does that by itself.
        kwargs: `normalizer`, `regularizer` and `dropout` of every `Representation`, with their arguments.

    `reset_parameters`, which PyKEEN calls for every new model and training from the beginning, leaves the rows alone:
    they are born by the initializer of their table.
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
                f"vectors of shape {shape} and {dtype} have {math.prod(shape) * floats} weights, rows of table "
                f"{table.name!r} have {table.dim}: make the table with dim={math.prod(shape) * floats}"
            )
        if table.num_rows not in (None, max_id):
            raise InvalidInput(
                f"max_id is {max_id}, table {table.name!r} has num_rows {table.num_rows}: they must agree"
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
        """Rows are in a store; vectors go where the ids are."""
        return torch.device("cpu")

    def iter_extra_repr(self) -> Iterable[str]:
        """The parts of `repr`, with the name of the table."""
        yield from super().iter_extra_repr()
        yield f"table={self.rows.table.name!r}"


class RowUpdates(TrainingCallback):
    """Updates rows when PyKEEN's optimizer updates the rest, not in each backward pass.

    For loops in which that differs: with `sub_batch_size`, whose batches take several backward passes, and with
    `automatic_memory_optimization`, which tries batches before the first.

        rows = rowmill.optim.RowOptimizer(model)
        loop.train(factory, batch_size=1024, sub_batch_size=128, callbacks=RowUpdates(rows))

    Args:
        rows: Collects the gradients of the rows of the model.
    """

    def __init__(self, rows: RowOptimizer) -> None:
        super().__init__()
        self.rows = rows

    def pre_batch(self, **kwargs: Any) -> None:
        """Drop what was collected outside a batch."""
        self.rows.zero_grad()

    def post_batch(self, epoch: int, batch: Any, **kwargs: Any) -> None:
        """Update the rows with the gradients of the batch."""
        self.rows.step()
