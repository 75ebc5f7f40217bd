"""Changes of a store as a Parquet file, for other programs."""

# pyarrow ships no type hints.
# pyright: reportUnknownArgumentType=none, reportUnknownParameterType=none, reportUnknownVariableType=none

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill._extras import extra

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rowmill.store.changes import Changes


def write_parquet(changes: Changes, path: str | os.PathLike[str]) -> dict[str, list[int]]:
    """Write changes to a Parquet file, one record per row written or deleted.

    Columns: `table`, `id`, `deleted`, `weights` and `state` (lists of float32; null where deleted). The
    schema's metadata has the key `rowmill`: JSON with `since`, `until` and the tables.

    Returns:
        Rows written and rows deleted, by table.
    """
    tables = changes.core.tables()
    about = {"since": changes.since, "until": changes.until, "tables": tables}
    floats = pa.list_(pa.float32())
    schema = pa.schema(
        [
            ("table", pa.dictionary(pa.int32(), pa.string())),
            ("id", pa.int64()),
            ("deleted", pa.bool_()),
            ("weights", floats),
            ("state", floats),
        ],
        metadata={"rowmill": json.dumps(about)},
    )
    names = [table["name"] for table in tables]
    counts = {name: [0, 0] for name in names}
    with pq.ParquetWriter(os.fspath(path), schema) as writer:
        for batch in changes:
            written, deleted = len(batch.ids), len(batch.deleted)
            counts[batch.table][0] += written
            counts[batch.table][1] += deleted
            table = np.full(written + deleted, names.index(batch.table), np.int32)
            columns = [
                pa.DictionaryArray.from_arrays(table, names),
                pa.array(np.concatenate([batch.ids, batch.deleted])),
                pa.array(np.arange(written + deleted) >= written),
                _lists(batch.weights, deleted),
                _lists(batch.state, deleted),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return counts


def _lists(rows_ND: NDArray[np.float32], nulls: int) -> Any:
    """One list per row, followed by `nulls` nulls."""
    rows, width = rows_ND.shape
    offsets = np.concatenate([np.arange(rows + 1) * width, np.full(nulls, rows * width)])
    mask = np.arange(rows + nulls) >= rows
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()),
        pa.array(np.ascontiguousarray(rows_ND).reshape(-1)),
        mask=pa.array(mask),
    )
