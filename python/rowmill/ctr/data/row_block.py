"""A block of raw rows as arrays, and the conversion and checks from Arrow columns.

Shapes: n rows, N numeric features, F id features, T tasks, S id columns: F, plus the places of histories.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowmill._extras import extra
from rowmill.ctr.data.schema import Schema
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.compute as pc

MISSING_ID = -(2**63)
"""The id of missing values. The reader refuses logs that contain it as a real id."""


@dataclass(frozen=True)
class RowBlock:
    """Raw rows: labels ``[n]`` float32, dense ``[n, N]`` float32 with NaN for missing values, ids ``[n, S]`` int64.

    With several tasks labels are ``[n, T]``. With histories, ``lengths`` ``[n]`` int64 holds the number of ids in the
    history of each row; the remaining places hold `MISSING_ID`.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> "RowBlock":
        """A view of rows ``start <= row < stop``."""
        lengths = None if self.lengths is None else self.lengths[start:stop]
        return RowBlock(
            self.labels[start:stop], self.dense[start:stop], self.ids[start:stop], lengths
        )

    def followed_by(self, other: "RowBlock") -> "RowBlock":
        """The rows of this block, then of `other`."""
        lengths = None
        if self.lengths is not None and other.lengths is not None:
            lengths = np.concatenate([self.lengths, other.lengths])
        return RowBlock(
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.dense, other.dense]),
            np.concatenate([self.ids, other.ids]),
            lengths,
        )


Where = Callable[[int], str]
"""Gives the file and row of the i-th row of a batch, for messages."""


def block_from_arrow(batch: pa.RecordBatch, schema: Schema, where: Where) -> RowBlock:
    """Check and convert the columns of one Arrow batch. Ids must be integers; nulls mean missing."""
    rows = batch.num_rows
    dense = np.empty((rows, len(schema.dense)), dtype=np.float32)
    ids = np.full((rows, len(schema.id_features)), MISSING_ID, dtype=np.int64)
    for feature, name in enumerate(schema.dense):
        dense[:, feature] = _dense(_column(batch, name), name, where)
    for feature, name in enumerate(schema.ids):
        ids[:, feature] = _ids(_column(batch, name), name, where)
    labels = [_labels(_column(batch, name), name, where) for name in schema.labels]
    lengths: NDArray[np.int64] | None = None
    for number, (_, name) in enumerate(schema.histories):
        column = len(schema.ids) + number * schema.places
        places = ids[:, column : column + schema.places]
        before = _fill_history(_column(batch, name), name, where, places)
        if lengths is not None:
            _check_equally_long(before, lengths, name, schema, where)
        lengths = before
    taken = None if lengths is None else np.minimum(lengths, schema.places)
    if not labels:
        labels = [np.zeros(rows, np.float32)]
    return RowBlock(labels[0] if len(labels) == 1 else np.stack(labels, axis=1), dense, ids, taken)


def check_columns(present: list[str], schema: Schema, file: str) -> None:
    """Raise if a column of the schema is not in the file."""
    absent = [name for name in schema.names if name not in present]
    if absent:
        raise DataError(
            f"{file} has no column {absent[0]!r}; it has {', '.join(present)}. "
            "Name your columns in a schema file and pass it with --schema"
        )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column: pa.Array = batch.column(name)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _labels(column: pa.Array, name: str, where: Where) -> NDArray[np.float32]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(
            f"{where(0)}: label column {name!r} must hold the numbers 0 and 1, got type {kind}"
        )
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(
            f"{where(row)}: label {name!r} is missing: drop the row, or set it to 0 or 1"
        )
    labels = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{where(row)}: label {name!r} must be 0 or 1, got {column[row].as_py()!r}")
    return np.array(labels, dtype=np.float32)


def _dense(column: pa.Array, name: str, where: Where) -> NDArray[np.float32]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{where(0)}: numeric column {name!r} must hold numbers, got type {kind}: cast it to int64 or float32"
        )
    values = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(np.isinf(values))
    if len(wrong):
        raise DataError(
            f"{where(int(wrong[0]))}: {name!r} is infinite: leave it empty if it is unknown"
        )
    return values


def _ids(column: pa.Array, name: str, where: Where) -> NDArray[np.int64]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{where(0)}: id column {name!r} must hold 64-bit integers, got type {kind}: cast it to int64 (hash "
            "strings to 64 bits), or remove it from 'ids' in the schema"
        )
    if pa.types.is_uint64(kind):
        ids: NDArray[np.int64] = (
            pc.fill_null(column, 0).to_numpy(zero_copy_only=False).view(np.int64)
        )
    else:
        ids = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    reserved = np.flatnonzero(ids == MISSING_ID)
    if len(reserved):
        raise DataError(
            f"{where(int(reserved[0]))}: id column {name!r} holds {MISSING_ID}, which is reserved for missing "
            "values: use another id"
        )
    if column.null_count:
        ids = np.where(column.is_null().to_numpy(zero_copy_only=False), np.int64(MISSING_ID), ids)
    return ids


def _fill_history(
    column: pa.Array, name: str, where: Where, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Copy the last ids of every list into ``places`` ``[n, P]``; return the lengths of the lists."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise DataError(
            f"{where(0)}: history column {name!r} must hold lists of integers, got type {kind}"
        )
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{where(row)}: history {name!r} is missing: use an empty list")
    lengths = pc.call_function("list_value_length", [column]).to_numpy(zero_copy_only=False)
    lengths = lengths.astype(np.int64)
    ends = np.cumsum(lengths)
    flat = column.flatten()

    def of_id(position: int) -> str:
        return where(int(np.searchsorted(ends, position, side="right")))

    if flat.null_count:
        position = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{of_id(position)}: history {name!r} holds a null: drop it from the list")
    ids = _ids(flat, name, of_id)
    taken = np.minimum(lengths, places.shape[1])
    rows = np.repeat(np.arange(len(lengths)), taken)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(taken) - taken, taken)
    places[rows, nth] = ids[np.repeat(ends - taken, taken) + nth]
    return lengths


def _check_equally_long(
    lengths: NDArray[np.int64],
    first: NDArray[np.int64],
    name: str,
    schema: Schema,
    where: Where,
) -> None:
    wrong = np.flatnonzero(lengths != first)
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where(row)}: history {name!r} has {lengths[row]} ids, but {schema.histories[0][1]!r} has {first[row]}: "
            "all histories of a row describe the same events and must be equally long"
        )


def any_table_to_arrow(table: Any) -> pa.Table:
    """An Arrow, polars or pandas table as an Arrow table, without copying where the formats agree."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    raise DataError(
        f"cannot read a {type(table).__name__}: pass a path, or an Arrow, polars or pandas table"
    )
