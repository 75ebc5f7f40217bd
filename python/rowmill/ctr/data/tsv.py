"""A reader of tab-separated click logs without a header (Criteo's raw format), in bounded memory.

Every field is read as text and then converted column by column, so that an error can name line, column and value. Line
numbers start at 1, as in editors.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from rowmill.ctr.data.row_block import MISSING_ID, RowBlock, block_from_arrow
from rowmill.ctr.data.schema import Schema
from rowmill.errors import DataError
from rowmill.files import check_text

# Large enough that the overhead per block vanishes; small enough that a block with its columns takes less than 100 MB.
_BLOCK_BYTES = 8 << 20
_SCAN_BYTES = 1 << 20
_HEX_DIGITS_MAX = 16
_WRONG_COUNT = re.compile(r"Row #(\d+): Expected \d+ columns, got (\d+)")

_NIBBLES = np.full(256, 255, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789", dtype=np.uint8)] = np.arange(10)
_NIBBLES[np.frombuffer(b"abcdef", dtype=np.uint8)] = np.arange(10, 16)
_NIBBLES[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = np.arange(10, 16)


def count_lines(path: Path) -> int:
    """Number of lines; the last one may lack its newline. Raises `DataError` if the file is clearly not text."""
    lines, last = 0, b"\n"
    with path.open("rb") as file:
        check_text(file.peek(_SCAN_BYTES), path)
        while chunk := file.read(_SCAN_BYTES):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def read_tsv(path: Path, schema: Schema, start: int) -> Iterator[RowBlock]:
    """Rows from number ``start`` (from 0) to the end, in blocks."""
    with path.open("rb") as file:
        file.seek(_offset_of_line(path, start))
        if not file.peek(1):
            return
        line = start + 1
        try:
            reader = pacsv.open_csv(
                file,
                read_options=pacsv.ReadOptions(
                    column_names=list(schema.columns), block_size=_BLOCK_BYTES, use_threads=False
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter="\t",
                    quote_char=False,
                    ignore_empty_lines=False,
                ),
                convert_options=pacsv.ConvertOptions(
                    column_types={name: pa.string() for name in schema.columns},
                    include_columns=schema.names,
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
            for batch in reader:
                first = line
                yield block_from_arrow(
                    _typed(batch, schema, path, first),
                    schema,
                    lambda row, first=first: f"{path}, line {first + row}",
                )
                line += batch.num_rows
        except pa.ArrowInvalid as error:
            found = _WRONG_COUNT.search(str(error))
            if found is None:
                raise DataError(
                    f"{path}, from line {line}: not a readable TSV file: {error}"
                ) from None
            row, fields = map(int, found.groups())
            raise DataError(
                f"{path}, line {start + row}: {fields} fields, expected {len(schema.columns)} "
                f"({schema.label}, {len(schema.dense)} integers, {len(schema.ids)} ids, separated by tabs; "
                "leave a field empty if its value is missing)"
            ) from None


def _offset_of_line(path: Path, line: int) -> int:
    """Byte at which line number ``line`` (from 0) starts."""
    offset = 0
    with path.open("rb") as file:
        while line and (chunk := file.read(_SCAN_BYTES)):
            here = chunk.count(b"\n")
            if here < line:
                line -= here
                offset += len(chunk)
                continue
            ends = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n"))
            return offset + int(ends[line - 1]) + 1
    return offset


def _typed(batch: pa.RecordBatch, schema: Schema, path: Path, first_line: int) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for name in schema.names:
        text: pa.Array = batch.column(name)
        if name in schema.ids and schema.id_base == 16:
            columns.append(_hex_ids(text, name, path, first_line))
            continue
        kind = pa.int64() if name in schema.ids else pa.float64()
        try:
            columns.append(text.cast(kind))
        except pa.ArrowInvalid:
            row, value = _first_bad(text, kind)
            meaning = "an id in base 10" if name in schema.ids else "a number"
            header = (
                " (a TSV log has no header: remove line 1)"
                if first_line + row == 1 and value == name
                else ""
            )
            raise DataError(
                f"{path}, line {first_line + row}: {name} must be {meaning}, got {value!r}{header}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _first_bad(text: pa.Array, kind: pa.DataType) -> tuple[int, str]:
    for row in range(len(text)):
        try:
            text.slice(row, 1).cast(kind)
        except pa.ArrowInvalid:
            return row, text[row].as_py()
    raise AssertionError("a cast of all values failed, but of none alone")


def _hex_ids(text: pa.Array, name: str, path: Path, first_line: int) -> pa.Array:
    """Ids of up to 16 hex digits; null stays null."""
    widths = pc.fill_null(pc.call_function("binary_length", [text]), 0).to_numpy(
        zero_copy_only=False
    )
    padded = pc.fill_null(_padded(text), "0" * _HEX_DIGITS_MAX)
    long = np.flatnonzero(widths > _HEX_DIGITS_MAX)
    if len(long):
        row = int(long[0])
        raise DataError(
            f"{path}, line {first_line + row}: {name} must have at most 16 hex digits (64 bits), got "
            f"{text[row].as_py()!r}"
        )
    digits = _characters(padded)
    nibbles = _NIBBLES[digits]
    bad = np.flatnonzero((nibbles == 255).any(axis=1))
    if len(bad):
        row = int(bad[0])
        raise DataError(
            f"{path}, line {first_line + row}: {name} must be hexadecimal, got {text[row].as_py()!r}: for decimal ids "
            "set id_base = 10 in the schema"
        )
    packed = np.ascontiguousarray((nibbles[:, 0::2] << 4) | nibbles[:, 1::2])
    ids = packed.view(">u8").ravel().astype(np.uint64).view(np.int64)
    missing = text.is_null().to_numpy(zero_copy_only=False)
    reserved = np.flatnonzero((ids == MISSING_ID) & ~missing)
    if len(reserved):
        row = int(reserved[0])
        raise DataError(
            f"{path}, line {first_line + row}: {name} is {MISSING_ID:x}, which is reserved for missing values: use "
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
