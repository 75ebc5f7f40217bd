"""Reads rows into memory before a worker is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rowmill import _core

_BATCH_ROWS = 16_384


def preload(store: _core.Store, ending: threading.Event) -> None:
    """Read rows in the order of tables and ids until all are in memory, memory is full, or the process ends."""
    for name in store.table_names():
        table = store.open_table(name)
        out = np.empty((_BATCH_ROWS, table.dim), np.float32)
        for ids in _ids(table):
            table.get(ids, out[: len(ids)], None)
            # From now on, each row would take the place of one that was just read.
            if store.stats()["evictions"] > 0 or ending.is_set():
                return


def _ids(table: _core.Table) -> Iterator[NDArray[np.int64]]:
    if table.dense_rows is not None:
        for begin in range(0, table.dense_rows, _BATCH_ROWS):
            yield np.arange(begin, min(begin + _BATCH_ROWS, table.dense_rows))
        return
    for ids, _ in table.scan(_BATCH_ROWS):
        yield np.frombuffer(ids, np.int64)
