"""Copies the rows of a checkpoint into tables with another dim or optimizer, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rowmill.optim.specs import FTRL, SGD, Adam, RowwiseAdagrad, state_of_weights

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.changes import ChangedRows, Changes
    from rowmill.store.tables import Table


@dataclass(frozen=True)
class AlteredTable:
    """A table and its new form.

    Attributes:
        table: The new table, in another store; it has no rows yet.
        dim: The old dim.
        optimizer: The old optimizer.
        names: The names of the weights of old and new rows. Weights of equal names are kept; None: all are kept.
        steps: Optimizer steps of the old table.
    """

    table: Table
    dim: int
    optimizer: OptimizerSpec
    names: tuple[Sequence[Hashable], Sequence[Hashable]] | None
    steps: int

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Places of the weights that rows keep, in new rows and in old ones; None: all."""
        if self.names is None:
            return None
        before, after = self.names
        at = {name: place for place, name in enumerate(before)}
        kept = [place for place, name in enumerate(after) if name in at]
        return np.array(kept), np.array([at[after[place]] for place in kept])

    @property
    def keeps_state(self) -> bool:
        """Whether the optimizer state of rows stays: the optimizer is the same, with other parameters or not."""
        return type(self.optimizer) is type(self.table.optimizer)

    def begin(self) -> None:
        """Continue the step count of the old table, by which Adam corrects the bias of the state that is kept."""
        if self.keeps_state:
            self.table.core.set_steps(self.steps)

    def put(self, batch: ChangedRows) -> None:
        """Write rows and their optimizer state."""
        weights = batch.weights
        if self.places is not None:
            to, of = self.places
            # New weights have the values with which the table would begin these rows.
            weights = self.table.get(batch.ids)
            weights[:, to] = batch.weights[:, of]
        self.table.put(batch.ids, weights)
        state = self._state(batch.state, batch.ids, weights)
        if state is not None:
            self.table.put_state(batch.ids, state)

    def _state(
        self, old: NDArray[np.float32], ids: NDArray[np.int64], weights: NDArray[np.float32]
    ) -> NDArray[np.float32] | None:
        """The state of rows; None: that of new rows."""
        if not self.keeps_state:
            return state_of_weights(self.table.optimizer, weights)
        if old.shape[1] == 0:
            return None
        if self.places is None:
            return old
        to, of = self.places
        per_weight = _floats_per_weight(self.optimizer)
        state = self.table.get_state(ids)
        for number in range(per_weight):
            state[:, number * self.table.dim + to] = old[:, number * self.dim + of]
        state[:, per_weight * self.table.dim :] = old[:, per_weight * self.dim :]
        return state


def copy_rows(changes: Changes, tables: Mapping[str, AlteredTable]) -> dict[str, int]:
    """Write all rows into the new tables; returns their number by table. One batch at a time is in memory."""
    for table in tables.values():
        table.begin()
    count = dict.fromkeys(tables, 0)
    for batch in changes:
        if len(batch.ids):
            tables[batch.table].put(batch)
            count[batch.table] += len(batch.ids)
    return count


def _floats_per_weight(optimizer: OptimizerSpec) -> int:
    """Floats of optimizer state per weight; they come before those per row."""
    if isinstance(optimizer, Adam | FTRL):
        return 2
    return 0 if isinstance(optimizer, SGD | RowwiseAdagrad) else 1
