"""Files and folders of results. They have a hidden name while they are written, so a killed command leaves no partial result."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from rowmill._extras import extra
from rowmill.errors import InvalidInput
from rowmill.files import writing

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from numpy.typing import NDArray

# pyarrow has no types for these calls.
_arrow: Any = pa


def check_new(out: Path) -> None:
    """Raise `InvalidInput` if something is at the path for a new file or folder, or its parent is missing."""
    if out.exists() or out.is_symlink():
        raise InvalidInput(f"--out {out} exists: remove it, or give another path")
    if not out.parent.is_dir():
        raise InvalidInput(
            f"--out {out}: {out.parent} is not a folder; make it, or give another path"
        )


@contextmanager
def new_file(out: Path) -> Generator[Path]:
    """A hidden path next to `out` for writing a file. The file is renamed to `out` at the end, and removed on an error."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        yield unfinished
        unfinished.rename(out)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """As `new_file`, for a folder of files."""
    unfinished = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


class ParquetFile:
    """A Parquet file that grows by batches of columns. Columns of matrices become lists of a fixed length."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            with writing(self._path):
                self._writer.close()

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows; the columns of all batches have equal names and types."""
        table = _arrow.table({name: _column(values) for name, values in columns.items()})
        with writing(self._path):
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._path, table.schema)
            self._writer.write_table(table)


class NpyFile:
    """A `.npy` file of one array that grows by rows, so that its length need not be known before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._rows = 0
        self._first: NDArray[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with writing(self._path), self._file:
            if self._first is not None:
                self._file.seek(0)
                self._head()

    def write(self, rows: NDArray[Any]) -> None:
        """Append rows `[n, ...]`; all have equal dtypes and equal further dimensions."""
        with writing(self._path):
            if self._first is None:
                self._first = rows[:0]
                self._head()
            self._rows += len(rows)
            self._file.write(np.ascontiguousarray(rows).data)

    def _head(self) -> None:
        # NumPy pads the header so that it keeps its length when the first dimension grows.
        assert self._first is not None
        described = {
            "descr": np.lib.format.dtype_to_descr(self._first.dtype),
            "fortran_order": False,
            "shape": (self._rows, *self._first.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._file, described)


def _column(values: Any) -> Any:
    """An Arrow column of an array; Arrow columns stay as they are."""
    if not isinstance(values, np.ndarray):
        return values
    array = cast("NDArray[Any]", values)
    flat = _arrow.array(np.ascontiguousarray(array).reshape(-1))
    return flat if array.ndim == 1 else _arrow.FixedSizeListArray.from_arrays(flat, array.shape[1])
