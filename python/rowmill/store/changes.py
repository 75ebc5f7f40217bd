"""Changes between an earlier and the last checkpoint of a store, to bring copies up to date."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rowmill import _core
from rowmill.optim.specs import optimizer_from_dict
from rowmill.size import check_int

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.store import Store
    from rowmill.store.tables import Dtype


@dataclass(frozen=True)
class ChangedTable:
    """A table in the last checkpoint."""

    name: str
    dim: int
    dtype: Dtype
    """Storage type of the weights in the store; `ChangedRows` gives them as float32."""
    optimizer: OptimizerSpec
    num_rows: int | None
    """Ids are in [0, num_rows); None: any 64-bit id."""
    steps: int
    """Optimizer steps applied to the table."""
    rows: int
    """Rows in the table, changed or not."""


@dataclass(frozen=True)
class ChangedRows:
    """One batch of changes of one table. Each id occurs in at most one batch, once."""

    table: str
    ids: NDArray[np.int64]
    """Ids of rows that are new or were written, `[n]`."""
    weights: NDArray[np.float32]
    """`[n, dim]`."""
    state: NDArray[np.float32]
    """Optimizer state, `[n, floats of state]`; serving does not need it."""
    deleted: NDArray[np.int64]
    """Ids of deleted rows; some may not have existed at `since` either."""


class Changes:
    """The changes of a store from checkpoint `since` to the last one; iterating reads them in batches.

    Another process may have the store open for writing. For the next call, pass the `until` of this one as `since`.

    Args:
        path: Folder of the store, or the binding's object that `Store.changes` passes.
        since: Number (`epoch`) of the checkpoint that the reader's copy has; 0: all rows.

    Raises:
        ChangesGone: The changes since that checkpoint are no longer kept. Read all rows with `since=0`.
        StoreSuperseded: While iterating: a writer replaced the last checkpoint. Begin again.

    Examples:
        >>> import tempfile, rowmill
        >>> folder = tempfile.mkdtemp()
        >>> with rowmill.open(folder, memory="16MiB") as store:
        ...     words = store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=0.5))
        ...     words.put([1, 2], [[1.0, 1.0], [2.0, 2.0]])
        ...     first = store.checkpoint()["epoch"]
        ...     words.put([2], [[3.0, 3.0]])
        ...     deleted = words.delete([1])
        ...     last = store.checkpoint()["epoch"]
        >>> for batch in rowmill.Changes(folder, since=first):
        ...     print(batch.table, batch.ids, batch.weights.tolist(), batch.deleted)
        words [2] [[3.0, 3.0]] []
        words [] [] [1]
    """

    def __init__(
        self, path: str | os.PathLike[str] | _core.Changes, *, since: int | None = None
    ) -> None:
        if not isinstance(path, _core.Changes):
            path = _core.Changes.open(os.fspath(path), check_int(since, "since", 0, 2**63 - 1))
        self.core = path
        self.since: int = path.since
        """The checkpoint at which the changes begin; 0 for all rows."""
        self.until: int = path.until
        """The checkpoint at which the changes end."""
        self.batch_rows = 16_384
        """Most rows per batch; batches of wide rows are smaller."""

    def __repr__(self) -> str:
        return f"Changes(since={self.since}, until={self.until})"

    def tables(self) -> list[ChangedTable]:
        """All tables of the last checkpoint, in the order of their creation."""
        return [
            ChangedTable(
                name=table["name"],
                dim=table["dim"],
                dtype=table["dtype"],
                optimizer=optimizer_from_dict(table["optimizer"]),
                num_rows=table["dense_rows"],
                steps=table["steps"],
                rows=table["rows"],
            )
            for table in self.core.tables()
        ]

    def __iter__(self) -> Iterator[ChangedRows]:
        for table, ids, rows, floats, dim, deleted in self.core.rows(
            check_int(self.batch_rows, "batch_rows", 1, 2**31)
        ):
            rows_NF = np.frombuffer(rows, np.float32).reshape(-1, floats)
            yield ChangedRows(
                table=table,
                ids=np.frombuffer(ids, np.int64),
                weights=rows_NF[:, :dim],
                state=rows_NF[:, dim:],
                deleted=np.frombuffer(deleted, np.int64),
            )

    def replay(self, store: Store) -> tuple[int, int]:
        """Bring a copy of the store at `since`, or an empty store, to the last checkpoint.

        Rows, optimizer state and steps of every table are then equal; missing tables are created. If the copy has
        the seed of the store, rows created later get equal initial weights too. Call `checkpoint` of the copy to
        make the changes durable.

        Returns:
            Rows written and rows deleted.
        """
        store.steps.flush_all()
        return self.core.replay(store.core)


def count(changes: Changes) -> dict[str, list[int]]:
    """Rows written and rows deleted, by table."""
    counts = {table.name: [0, 0] for table in changes.tables()}
    for batch in changes:
        counts[batch.table][0] += len(batch.ids)
        counts[batch.table][1] += len(batch.deleted)
    return counts
