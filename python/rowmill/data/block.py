"""A stretch of raw rows as arrays, and the checks that turn Arrow columns into it.

Shapes: n rows, N numeric features, F id features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rowmill.data.errors import DataError
from rowmill.data.schema import Schema

MISSING_ID = -(2**63)
"""The id a missing value gets: one 64-bit pattern that no real id may use (the reader checks)."""


@dataclass(frozen=True)
class Block:
    """Raw rows: labels ``[n]`` float32, dense ``[n, N]`` float32 with NaN where missing, ids ``[n, F]`` int64."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    ids: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


Where = Callable[[int], str]
"""Tells where the i-th row of a batch came from: file and row, for messages."""


def block_from_arrow(batch: pa.RecordBatch, schema: Schema, where: Where) -> Block:
    """Check and convert the columns of one Arrow batch. Ids must be integers; nulls mean missing."""
    rows = batch.num_rows
    dense = np.empty((rows, len(schema.dense)), dtype=np.float32)
    ids = np.empty((rows, len(schema.ids)), dtype=np.int64)
    for feature, name in enumerate(schema.dense):
        dense[:, feature] = _dense(_column(batch, name), name, where)
    for feature, name in enumerate(schema.ids):
        ids[:, feature] = _ids(_column(batch, name), name, where)
    return Block(_labels(_column(batch, schema.label), schema.label, where), dense, ids)


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
            f"{where(0)}: label column {name!r} has type {kind}; it must hold the numbers 0 and 1"
        )
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{where(row)}: label {name!r} is missing; drop the row or give it 0 or 1")
    labels = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where(row)}: label {name!r} is {column[row].as_py()!r}; it must be 0 or 1"
        )
    return np.array(labels, dtype=np.float32)


def _dense(column: pa.Array, name: str, where: Where) -> NDArray[np.float32]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{where(0)}: numeric column {name!r} has type {kind}; cast it to int64 or float32"
        )
    values = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(np.isinf(values))
    if len(wrong):
        raise DataError(
            f"{where(int(wrong[0]))}: {name!r} is infinite; leave it empty if it is unknown"
        )
    return values


def _ids(column: pa.Array, name: str, where: Where) -> NDArray[np.int64]:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{where(0)}: id column {name!r} has type {kind}; ids are 64-bit integers. Cast the column to int64 "
            "(a 64-bit hash will do for strings) or take it out of 'ids' in the schema"
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
            f"{where(int(reserved[0]))}: id column {name!r} holds {MISSING_ID}, which stands for missing"
        )
    if column.null_count:
        ids = np.where(column.is_null().to_numpy(zero_copy_only=False), np.int64(MISSING_ID), ids)
    return ids


def any_table_to_arrow(table: Any) -> pa.Table:
    """An Arrow, polars or pandas table as an Arrow table, without copying where the formats agree."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    raise DataError(
        f"cannot read a {type(table).__name__}; pass a path, or an Arrow, polars or pandas table"
    )
