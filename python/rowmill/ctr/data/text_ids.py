"""Ids that are written as text, in base 10 or 16."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowmill._extras import extra
from rowmill.ctr.data.row_block import MISSING_ID, Where, any_table_to_arrow
from rowmill.ctr.data.schema import Schema
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.compute as pc

_HEX_DIGITS_MAX = 16

_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789", dtype=np.uint8)] = np.arange(10)
_NIBBLES[np.frombuffer(b"abcdef", dtype=np.uint8)] = np.arange(10, 16)
_NIBBLES[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)


def with_integer_ids(data: Any, schema: Schema) -> Any:
    """An Arrow, polars or pandas table as an Arrow table with int64 in place of ids that are strings; an empty string becomes null.

    Raises:
        DataError: A string is no id; names row and column.
    """
    table = any_table_to_arrow(data)
    for name in (*schema.ids, *dict(schema.histories).values()):
        if name not in table.column_names:
            continue
        column = table[name].combine_chunks()
        is_list = pa.types.is_list(column.type)
        text = column.flatten() if is_list else column
        if not pa.types.is_string(text.type):
            continue
        empty = pc.call_function("equal", [text, pa.scalar("")])
        given = pc.call_function("if_else", [empty, pa.scalar(None, pa.string()), text])
        ids = ids_of_text(given, name, schema.id_base, lambda i: f"the table, id {i} (from 0)")
        if is_list:
            offsets = pc.call_function("subtract", [column.offsets, column.offsets[0]])
            ids = pa.ListArray.from_arrays(offsets, ids, mask=column.is_null())
        table = table.set_column(table.column_names.index(name), name, ids)
    return table


def ids_of_text(text: pa.Array, name: str, base: int, where: Where) -> pa.Array:
    """The int64 ids that a column of strings has in base 10 or 16; null stays null."""
    if base == 16:
        return _hex_ids(text, name, where)
    try:
        return text.cast(pa.int64())
    except pa.ArrowInvalid:
        row, value = first_bad(text, pa.int64())
        raise DataError(f"{where(row)}: {name} must be an id in base 10, got {value!r}") from None


def first_bad(text: pa.Array, kind: pa.DataType) -> tuple[int, str]:
    """The first row that cannot be cast, and its text."""
    for row in range(len(text)):
        try:
            text.slice(row, 1).cast(kind)
        except pa.ArrowInvalid:
            return row, text[row].as_py()
    raise AssertionError("a cast of all values failed, but of none alone")


def _hex_ids(text: pa.Array, name: str, where: Where) -> pa.Array:
    """Ids of up to 16 hex digits; null stays null."""
    widths = pc.fill_null(pc.call_function("binary_length", [text]), 0).to_numpy(
        zero_copy_only=False
    )
    padded = pc.fill_null(_padded(text), "0" * _HEX_DIGITS_MAX)
    long = np.flatnonzero(widths > _HEX_DIGITS_MAX)
    if len(long):
        row = int(long[0])
        raise DataError(
            f"{where(row)}: {name} must have at most 16 hex digits (64 bits), got "
            f"{text[row].as_py()!r}"
        )
    digits = _characters(padded)
    nibbles = _NIBBLES[digits]
    bad = np.flatnonzero((nibbles == 255).any(axis=1))
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{where(row)}: {name} must be hexadecimal, got {text[row].as_py()!r}: for decimal ids "
            "set id_base = 10 in the schema"
        )
    packed = np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])
    ids = packed.view(">u8").ravel().astype(np.uint64).view(np.int64)
    missing = text.is_null().to_numpy(zero_copy_only=False)
    reserved = np.flatnonzero((ids == MISSING_ID) & ~missing)
    if len(reserved):
        row = int(reserved[0])
        raise DataError(
            f"{where(row)}: {name} is {MISSING_ID:x}, which is reserved for missing values: use "
            "another id"
        )
    return pa.array(ids, mask=missing)


def _padded(text: pa.Array) -> pa.Array:
    options = pc.PadOptions(_HEX_DIGITS_MAX, "0")
    return pc.call_function("utf8_lpad", [text], options)


def _characters(padded: pa.Array) -> NDArray[np.uint8]:
    """The bytes of equally long ASCII strings, ``[n, 16]``; strings with other characters become zeros, which are no digits."""
    fixed = padded.cast(pa.binary())
    data = np.frombuffer(fixed.buffers()[2] or b"", dtype=np.uint8)
    offsets = np.frombuffer(fixed.buffers()[1] or b"", dtype=np.int32)[
        fixed.offset : fixed.offset + len(fixed) + 1
    ]
    starts = offsets[:-1]
    if np.all(np.diff(offsets) == _HEX_DIGITS_MAX):
        return (
            data[int(starts[0]) : int(offsets[-1])].reshape(-1, _HEX_DIGITS_MAX)
            if len(starts)
            else data[:0].reshape(0, 16)
        )
    # A multi-byte character makes a string longer than 16 bytes: leave it as zeros, and the caller reports it.
    characters = np.zeros((len(starts), _HEX_DIGITS_MAX), dtype=np.uint8)
    whole = np.diff(offsets) == _HEX_DIGITS_MAX
    characters[whole] = data[starts[whole][:, None] + np.arange(_HEX_DIGITS_MAX)]
    return characters
