"""Rows of a storage node, with the calls of a store that reading needs.

A store opened with a URL `nvme+tcp://...` has a `NodeCore` where other stores have the core of the binding. Its tables pool
and read rows; everything else raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

from rowmill import _core
from rowmill.errors import SpecMismatch, StoreReadOnly, TableMissing
from rowmill.store.access import Access

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

SCHEME = "nvme+tcp://"


def connect(url: str, *, access: Path | None, wait_deadline_s: float) -> _core.NodeRows:
    """Connect to a namespace of rows.

    Args:
        url: `nvme+tcp://HOST:PORT/NQN`, with `?namespace=N` if the subsystem has several namespaces of rows.
        access: The file that `Access.read` reads.
        wait_deadline_s: Longest wait for an answer, reconnects included.

    Raises:
        InvalidInput: URL, file, name or key is invalid.
        StorageError: The node cannot be reached, or refuses this host.
    """
    return _core.NodeRows.open(url, access=Access.read(access), wait_s=wait_deadline_s)


class NodeCore:
    """The part of `_core.Store` that evaluation uses, over the rows of a node."""

    seed = 0
    read_only = True
    event_time = None

    def __init__(self, rows: _core.NodeRows) -> None:
        self.rows = rows
        self._known: dict[str, NodeTableCore] = {}

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(self.rows, name)

    def check_process(self) -> None:
        """Nothing: calls in a forked child raise."""

    def ticket(self, event_time: int | None) -> NoReturn:
        """Raise: a training step needs rows that can be written."""
        refuse(self.rows, "a training read (call model.eval() to evaluate)")

    def table_names(self) -> list[str]:
        """Names of the node's tables, sorted."""
        self._read_tables()
        return sorted(self._known)

    def open_table(self, name: str) -> NodeTableCore:
        """The table of that name."""
        if name not in self._known:
            self._read_tables()
        if name not in self._known:
            names = ", ".join(sorted(self._known))
            raise TableMissing(f"{self.rows.url} has no table {name!r}; it has {names}")
        return self._known[name]

    def _read_tables(self) -> None:
        self._known = {
            entry["name"]: NodeTableCore(self.rows, **entry) for entry in self.rows.tables()
        }

    def table(self, name: str, *, dim: int, dense_rows: int | None, **_: Any) -> NodeTableCore:
        """The table of that name, which must exist."""
        table = self.open_table(name)
        if (table.dim, table.dense_rows) != (dim, dense_rows):
            raise SpecMismatch(
                f"table {name!r} of {self.rows.url} has dim={table.dim} and num_rows={table.dense_rows}, not dim={dim} and "
                f"num_rows={dense_rows}"
            )
        return table

    def lookup(
        self,
        tables: Sequence[NodeTableCore],
        ids: NDArray[Any],
        offsets: NDArray[Any],
        weights: NDArray[Any] | None,
        features: Sequence[int],
        bags: int,
        paddings: Sequence[int | None],
        means: Sequence[bool],
        out: NDArray[Any],
        row_stride: int,
        ticket: None,
        training: bool,
    ) -> None:
        """As `_core.Store.lookup`, without training."""
        names = [table.name for table in tables]
        self.rows.lookup(
            names, ids, offsets, weights, features, bags, paddings, means, out, row_stride
        )

    def lookup_rows(
        self,
        tables: Sequence[NodeTableCore],
        ids: NDArray[Any],
        counts: Sequence[int],
        times: NDArray[Any],
        out: NDArray[Any],
        ticket: None,
        training: bool,
    ) -> None:
        """As `_core.Store.lookup_rows`, without training."""
        self.rows.rows_of([table.name for table in tables], ids, counts, out)

    def lookahead(self, tables: Any, ids: Any, into: str, steps: int) -> bool:
        """Nothing: the node keeps its own hot rows."""
        return True

    def lookahead_pending(self) -> int:
        """No announcement waits."""
        return 0

    def attachment_names(self) -> list[str]:
        """None: a fill copies weights only."""
        return []

    def attachment(self, name: str) -> None:
        """None."""

    def close(self) -> None:
        """Disconnect."""
        self.rows.close()


@dataclass(frozen=True, eq=False)
class NodeTableCore:
    """The part of `_core.Table` that evaluation uses."""

    rows: _core.NodeRows
    name: str
    dim: int
    dtype: str
    dense_rows: int | None
    group: int
    staleness_bound: int | None = 0
    eviction: None = None
    admission: None = None

    @property
    def optimizer(self) -> dict[str, Any]:
        """One that changes nothing."""
        return {"kind": "sgd", "lr": 0.0}

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(self.rows, f"{name} of table {self.name!r}")

    def get(self, ids: NDArray[Any], out: NDArray[Any], ticket: None) -> None:
        """Read weights, as `_core.Table.get`."""
        self.rows.rows_of([self.name], ids, [len(ids)], out)


def refuse(rows: _core.NodeRows, what: str) -> NoReturn:
    """Raise for a call that rows of a node do not have."""
    raise StoreReadOnly(
        f"{what}: the rows of {rows.url} can only be read. Train the store that the node was filled from, and send its "
        "changes with `rowmill storage follow`"
    )


def as_core(rows: _core.NodeRows) -> _core.Store:
    """Rows of a node in the place of a store's core."""
    return cast("_core.Store", NodeCore(rows))
