"""A reader of tab-separated click logs without a header (Criteo's raw format), in bounded memory.

Every field is read as text and then converted column by column, so that an error can name line, column and value. Line
numbers start at 1, as in editors.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rowmill._extras import extra
from rowmill.ctr.data.row_block import RowBlock, block_from_arrow
from rowmill.ctr.data.schema import Schema
from rowmill.ctr.data.text_ids import first_bad, ids_of_text
from rowmill.errors import DataError
from rowmill.files import check_text

with extra("train"):
    import pyarrow as pa
    import pyarrow.csv as pacsv

# Large enough that the overhead per block vanishes; small enough that a block with its columns takes less than 100 MB.
_BLOCK_BYTES = 8 << 20
_SCAN_BYTES = 1 << 20
_WRONG_COUNT = re.compile(r"Row #(\d+): Expected \d+ columns, got (\d+)")


def count_lines(path: Path) -> int:
    """Number of lines; the last one may lack its newline. Raises `DataError` if the file is clearly not text."""
    lines, end = 0, b"\n"
    with path.open("rb") as file:
        check_text(file.peek(_SCAN_BYTES), path)
        while chunk := file.read(_SCAN_BYTES):
            lines += chunk.count(b"\n")
            end = (end + chunk)[-4:]
    if end.replace(b"\r", b"").endswith(b"\n\n"):
        raise DataError(f"{path}, line {lines}: the last line is empty: remove it")
    return lines + (end[-1:] != b"\n")


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
    def where(row: int) -> str:
        return f"{path}, line {first_line + row}"

    columns: list[pa.Array] = []
    for name in schema.names:
        text: pa.Array = batch.column(name)
        if name in schema.ids:
            columns.append(ids_of_text(text, name, schema.id_base, where))
            continue
        try:
            columns.append(text.cast(pa.float64()))
        except pa.ArrowInvalid:
            row, value = first_bad(text, pa.float64())
            header = (
                " (a TSV log has no header: remove line 1)"
                if first_line + row == 1 and value == name
                else ""
            )
            raise DataError(
                f"{where(row)}: {name} must be a number, got {value!r}{header}"
            ) from None
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
