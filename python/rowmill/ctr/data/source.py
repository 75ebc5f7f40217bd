"""Sources of click log rows in a fixed order: Parquet, TSV, or a table in memory.

A source reads blocks of bounded size, starting at any row, and holds at most one block of a file in memory. Files of a
folder are read in the order of their names.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rowmill._extras import extra
from rowmill.ctr.data.row_block import RowBlock, any_table_to_arrow, block_from_arrow, check_columns
from rowmill.ctr.data.schema import CRITEO, Schema
from rowmill.ctr.data.tsv import count_lines, read_tsv
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq

# 40 columns of 65,536 rows are about 20 MB.
_BLOCK_ROWS = 65_536
_TSV_SUFFIXES = (".tsv", ".txt", ".csv")
_PACKED_SUFFIXES = (".gz", ".zip", ".zst", ".bz2", ".xz")

# Verify page checksums where a file has them; generated logs do.
_VERIFIED = pads.ParquetFragmentScanOptions(page_checksum_verification=True)


class Source(Protocol):
    """The interface of a click log."""

    schema: Schema
    rows: int

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Rows ``start <= row < stop``, in order."""
        ...


def open_source(data: Any, schema: Schema = CRITEO) -> Source:
    """Open a file, a folder of files of one format, or an Arrow, polars or pandas table.

    Example:
        >>> import polars
        >>> table = polars.DataFrame({"y": [0, 1], "x": [None, 2.5], "user": [7, None]})
        >>> source = open_source(table, Schema(label="y", dense=("x",), ids=("user",)))
        >>> source.rows
        2
    """
    if not isinstance(data, str | Path):
        return TableSource(any_table_to_arrow(data), schema)
    path = Path(data)
    check_log(path)
    try:
        files = _files(path) if path.is_dir() else [path]
        source = (ParquetSource if _is_parquet(files[0]) else TsvSource)(files, schema)
    except OSError as error:
        raise DataError(f"data {error.filename or path} cannot be read: {error.strerror}") from None
    if source.rows == 0:
        raise DataError(f"data {path} has no rows")
    return source


def check_log(path: Path) -> None:
    """Raise `DataError` if there is neither a file nor a folder at the path."""
    if not path.exists():
        raise DataError(
            f"data {path} does not exist: pass a Parquet or TSV file, or a folder of them"
        )
    if not path.is_dir() and not path.is_file():
        raise DataError(
            f"data {path} is a pipe or a device, but a log is read more than once: pass a file"
        )


def is_log_name(name: str) -> bool:
    """Whether a file of this name in a folder belongs to a log."""
    return not name.startswith(("_", ".")) and name.endswith((".parquet", *_TSV_SUFFIXES))


def columns_of(path: Path) -> list[str] | None:
    """Names of the columns of a Parquet log; None of any other, and of one that cannot be read."""
    try:
        file = _files(path)[0] if path.is_dir() else path
        return pq.read_schema(file).names if path.exists() and _is_parquet(file) else None
    except (pa.ArrowInvalid, OSError):
        return None


def _files(directory: Path) -> list[Path]:
    if (directory / ".unfinished").exists():
        raise DataError(
            f"{directory} holds a log whose generation was interrupted: generate it again"
        )
    files = sorted(
        path
        for path in directory.iterdir()
        if path.is_file() and not path.name.startswith(("_", "."))
    )
    parquet = [path for path in files if path.suffix == ".parquet"]
    tsv = [path for path in files if path.suffix in _TSV_SUFFIXES]
    if parquet and tsv:
        raise DataError(
            f"{directory} holds both {parquet[0].name} and {tsv[0].name}: keep one format per folder"
        )
    if not parquet and not tsv:
        packed = next((path.name for path in files if path.suffix in _PACKED_SUFFIXES), None)
        raise DataError(
            f"{directory} holds no *.parquet and no *.tsv, *.txt or *.csv file"
            + ("" if packed is None else f"; unpack {packed} first")
        )
    for path in files:
        # Such as day2.tsv.gz beside day1.tsv. An archive beside the files that were in it is usual.
        plain = path.with_suffix("")
        is_packed = path.suffix in _PACKED_SUFFIXES
        if is_packed and plain not in files and plain.suffix in (".parquet", *_TSV_SUFFIXES):
            raise DataError(f"{path} is compressed: unpack it first, or move it elsewhere")
    return parquet or tsv


def _is_parquet(file: Path) -> bool:
    if file.suffix in _TSV_SUFFIXES:
        return False
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic == b"PAR1":
        return True
    if file.suffix in _PACKED_SUFFIXES:
        raise DataError(f"{file} is compressed: unpack it first")
    raise DataError(
        f"{file} is not a Parquet file, and its name does not end in .tsv, .txt or .csv"
    )


class ParquetSource:
    """Parquet files, read row group by row group."""

    def __init__(self, files: list[Path], schema: Schema) -> None:
        self.schema = schema
        self._groups: list[
            tuple[str, int, int, int]
        ] = []  # file, row group, its first row in the file, its rows
        for file in files:
            try:
                opened = pq.ParquetFile(file)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"{file} is not a readable Parquet file: {error}") from None
            with opened:
                check_columns(opened.schema_arrow.names, schema, str(file))
                first = 0
                for group in range(opened.metadata.num_row_groups):
                    rows = opened.metadata.row_group(group).num_rows
                    self._groups.append((str(file), group, first, rows))
                    first += rows
        self._dataset = pads.dataset([str(file) for file in files], format="parquet")
        self.rows = sum(rows for *_, rows in self._groups)

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Rows ``start <= row < stop``, in order."""
        fragments = {fragment.path: fragment for fragment in self._dataset.get_fragments()}
        before = 0
        for file, group, first, rows in self._groups:
            lo, hi = max(start - before, 0), min(stop - before, rows)
            before += rows
            if lo >= hi:
                continue
            fragment = fragments[file].subset(row_group_ids=[group])
            row = 0
            for batch in self._batches(fragment, file):
                here_lo, here_hi = max(lo - row, 0), min(hi - row, batch.num_rows)
                if here_lo < here_hi:
                    origin = first + row + here_lo
                    yield block_from_arrow(
                        batch.slice(here_lo, here_hi - here_lo),
                        self.schema,
                        lambda i, file=file, origin=origin: f"{file}, row {origin + i} (from 0)",
                    )
                row += batch.num_rows

    def _batches(self, fragment: Any, file: str) -> Iterator[pa.RecordBatch]:
        try:
            yield from fragment.to_batches(
                columns=self.schema.names,
                batch_size=_BLOCK_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
                fragment_scan_options=_VERIFIED,
            )
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{file} is damaged, or its columns have other types than in the first file: {error}"
            ) from None


class TsvSource:
    """Tab-separated files without a header."""

    def __init__(self, files: list[Path], schema: Schema) -> None:
        if schema.histories:
            raise DataError(
                f"{files[0]} is a TSV file, which cannot hold the lists of history {schema.histories[0][1]!r}: write "
                "the log as Parquet"
            )
        self.schema = schema
        self._files = [(file, count_lines(file)) for file in files]
        self.rows = sum(rows for _, rows in self._files)

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Rows ``start <= row < stop``, in order."""
        before = 0
        for file, rows in self._files:
            row, hi = max(start - before, 0), min(stop - before, rows)
            before += rows
            if row >= hi:
                continue
            for block in read_tsv(file, self.schema, row):
                yield head(block, hi - row)
                row += len(block)
                if row >= hi:
                    break


class TableSource:
    """A table that is already in memory."""

    def __init__(self, table: pa.Table, schema: Schema) -> None:
        check_columns(table.column_names, schema, "the table")
        self.schema = schema
        self.rows = table.num_rows
        self._table = table.select(schema.names)

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """Rows ``start <= row < stop``, in order."""
        row = start
        for batch in self._table.slice(start, max(stop - start, 0)).to_batches(
            max_chunksize=_BLOCK_ROWS
        ):
            yield block_from_arrow(
                batch, self.schema, lambda i, row=row: f"the table, row {row + i} (from 0)"
            )
            row += batch.num_rows


class NoRows:
    """A log whose rows are not read: there are none, or it is not trained on."""

    def __init__(self, schema: Schema, rows: int = 0) -> None:
        self.schema = schema
        self.rows = rows

    def blocks(self, start: int, stop: int) -> Iterator[RowBlock]:
        """No rows."""
        return iter(())


def head(block: RowBlock, rows: int) -> RowBlock:
    """The first ``rows`` rows of a block."""
    return block if len(block) <= rows else block.rows(0, rows)
