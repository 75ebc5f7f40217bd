"""`load_rows`: rows of a table from a file of vectors, in batches: `.npy`, Parquet, or a state dict of torch."""

# pyarrow has no types: everything read through it is unknown.
# pyright: reportUnknownMemberType=none, reportUnknownVariableType=none, reportUnknownArgumentType=none

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from rowmill._extras import extra
from rowmill.errors import DataError
from rowmill.optim.specs import state_of_weights
from rowmill.size import check_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from rowmill.store.tables import Table

_VECTORS = "vector"
_IDS = "id"
"""Columns that `rowmill vectors` writes."""
_STATE_DICTS = (".pt", ".pth", ".bin")
_FLOATS = ("float16", "float32", "float64", "bfloat16")
_SHOWN = 8
"""Most names that an error lists."""


def load_rows(
    table: Table,
    file: str | os.PathLike[str],
    *,
    vectors: str | None = None,
    ids: str | os.PathLike[str] | None = None,
    batch_rows: int = 16_384,
    kept: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
) -> int:
    """Write the vectors of a file to rows of a table, in batches; returns the number of vectors in the file.

    Vectors are float16, bfloat16, float32 or float64, and finite. They become float32. Optimizer state of rows is not
    changed, except for FTRL, which computes weights from its state. If an id is repeated, its last vector is used. Rows are
    durable after the next checkpoint of the store. After an error, some of the rows may have been written.

    Args:
        table: A table that was opened for writing.
        file: The file, by its suffix: `.npy` is an array `[n, dim]`; `.parquet` has a column of lists of `dim` numbers;
            `.pt`, `.pth` and `.bin` are state dicts of torch, with a matrix `[n, dim]`.
        vectors: Parquet: name of the column; None: "vector". State dict: name of the matrix; None: the only one.
        ids: Parquet: name of the column of ids; None: "id" if there is such a column. Else the path of an `.npy` file of
            integers `[n]`; None: `NAME.ids.npy` beside `NAME.npy` if it exists. Without ids, the id is the number of the
            row, from 0.
        batch_rows: Most rows to read at once.
        kept: Selects from distinct ids, int64 [n], those to write; None: all. The others are checked and counted only.

    Raises:
        DataError: The file is missing or damaged, or its vectors or ids do not fit the table; names file, row and value.

    Examples:
        >>> import tempfile, pathlib, numpy, rowmill
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> numpy.save(folder / "words.npy", numpy.ones((3, 2), numpy.float32))
        >>> with rowmill.open(folder / "store", memory="16MiB") as store:
        ...     words = store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=0.5))
        ...     rowmill.load_rows(words, folder / "words.npy"), words.get([2]).tolist()
        (3, [[1.0, 1.0]])
    """
    path = Path(file)
    check_int(batch_rows, "batch_rows", 1, 2**31)
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is no file: give a file of vectors")
    if path.suffix == ".parquet":
        batches = _parquet(path, table.dim, vectors, ids, batch_rows)
    elif path.suffix == ".npy":
        if vectors is not None:
            raise DataError(f"vectors = {vectors!r}, but {path} holds one array: leave vectors out")
        batches = _matrix(path, str(path), _npy(path), _ids_beside(path, ids), table, batch_rows)
    elif path.suffix in _STATE_DICTS:
        name, matrix = _tensor(path, vectors)
        numbers = None if ids is None else _ids_of(Path(ids))
        batches = _matrix(path, f"{path}, {name}", matrix, numbers, table, batch_rows)
    else:
        raise DataError(
            f"{path} must be .npy, .parquet, or a state dict of torch ({', '.join(_STATE_DICTS)}), got suffix {path.suffix!r}"
        )
    count = 0
    for numbers, weights in batches:
        if len(numbers):
            _check(path, table, numbers, weights, count)
            count += len(numbers)
            if kept is not None:
                mine = np.isin(numbers, kept(np.unique(numbers)))
                numbers, weights = numbers[mine], weights[mine]
            table.put(numbers, weights)
            if (state := state_of_weights(table.optimizer, weights)) is not None:
                table.put_state(numbers, state)
    return count


def _check(
    path: Path, table: Table, ids: NDArray[Any], weights: NDArray[np.float32], first: int
) -> None:
    """Raise unless ids are in the range of the table and weights are finite; `first` is the number of the first row."""
    if table.num_rows is not None:
        wrong = np.flatnonzero((ids < 0) | (ids >= table.num_rows))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{path}, row {first + row}: ids of table {table.name!r} are in [0, {table.num_rows:,}), got {ids[row]}: "
                "drop such rows, or say which ids the vectors have"
            )
    bad = np.flatnonzero(~np.isfinite(weights).all(axis=1))
    if len(bad):
        row = int(bad[0])
        column = int(np.flatnonzero(~np.isfinite(weights[row]))[0])
        raise DataError(
            f"{path}, row {first + row}: weight {column} is {weights[row, column]} as float32: weights must be finite; drop "
            "such rows"
        )


def _matrix(
    path: Path,
    where: str,
    matrix: Any,
    ids: NDArray[Any] | None,
    table: Table,
    batch_rows: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """The rows of an array or a tensor, of which only a batch at a time is in memory."""
    shape = tuple(int(size) for size in matrix.shape)
    dtype = str(matrix.dtype).removeprefix("torch.")
    if dtype not in _FLOATS:
        raise DataError(f"{where} is {dtype}: vectors must be {', '.join(_FLOATS)}; convert them")
    if len(shape) != 2 or shape[1] != table.dim:
        raise DataError(
            f"{where} has shape {list(shape)}, but rows of table {table.name!r} have {table.dim} weights: it must be "
            f"[n, {table.dim}]"
        )
    if ids is not None and len(ids) != shape[0]:
        raise DataError(f"{path} has {shape[0]:,} vectors, but there are {len(ids):,} ids")

    def read() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        for start in range(0, shape[0], batch_rows):
            part = matrix[start : start + batch_rows]
            if isinstance(part, torch.Tensor):
                part = part.detach().float().numpy()
            numbers = (
                np.arange(start, start + len(part), dtype=np.int64)
                if ids is None
                else _as_int64(ids[start : start + batch_rows])
            )
            yield numbers, _as_float32(part)

    return read()


def _npy(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file: {error}") from None


def _ids_beside(path: Path, ids: str | os.PathLike[str] | None) -> NDArray[Any] | None:
    beside = path.with_suffix(".ids.npy")
    if ids is not None:
        return _ids_of(Path(ids))
    return _ids_of(beside) if beside.is_file() else None


def _ids_of(path: Path) -> NDArray[Any]:
    if not path.is_file():
        raise DataError(f"ids: {path} does not exist; give an .npy file of integers")
    ids = _npy(path)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(f"ids: {path} is {ids.dtype} {list(ids.shape)}; ids must be integers [n]")
    return ids


def _tensor(path: Path, name: str | None) -> tuple[str, torch.Tensor]:
    """The matrix of this name in a state dict, whose bytes are read when they are used."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        why = str(error).splitlines()[0]
        raise DataError(
            f"{path} is not a readable state dict: {why}. Write it with torch.save(model.state_dict(), path)"
        ) from None
    found = dict(_tensors(content, ""))
    if name is not None:
        exact = [name] if name in found else [full for full in found if full.endswith(f".{name}")]
        if len(exact) == 1:
            return exact[0], found[exact[0]]
        what = "has no tensor" if not exact else f"has {len(exact)} tensors that end in"
        raise DataError(f"{path} {what} {name!r}; it has {_listed(exact or list(found))}")
    matrices = [full for full, value in found.items() if value.ndim == 2]
    if len(matrices) != 1:
        raise DataError(
            f"{path} has {len(matrices)} matrices: say which one holds the vectors (vectors); it has {_listed(list(found))}"
        )
    return matrices[0], found[matrices[0]]


def _tensors(content: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(content, torch.Tensor):
        yield prefix.removesuffix("."), content
    elif isinstance(content, dict):
        for key, value in cast("dict[Any, Any]", content).items():
            yield from _tensors(value, f"{prefix}{key}.")


def _listed(names: list[str]) -> str:
    more = "" if len(names) <= _SHOWN else f" and {len(names) - _SHOWN} more"
    return ", ".join(names[:_SHOWN]) + more if names else "none"


def _parquet(
    path: Path, dim: int, vectors: str | None, ids: str | os.PathLike[str] | None, batch_rows: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    with extra("train"):
        import pyarrow as pa
        import pyarrow.parquet as pq

    types: Any = pa.types
    try:
        file: Any = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from None
    columns: dict[str, Any] = {field.name: field.type for field in file.schema_arrow}
    vector = vectors or _VECTORS
    number = os.fspath(ids) if ids is not None else _IDS if _IDS in columns else None
    for name in (vector, number):
        if name is not None and name not in columns:
            raise DataError(f"{path} has no column {name!r}; it has {_listed(list(columns))}")
    kind = columns[vector]
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not types.is_floating(kind.value_type):
        raise DataError(
            f"{path}: column {vector!r} is {kind}; vectors must be lists of {dim} float16, float32 or float64"
        )
    if number is not None and not types.is_integer(columns[number]):
        raise DataError(f"{path}: column {number!r} is {columns[number]}; ids must be integers")

    def read() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        first = 0
        chosen = [name for name in (vector, number) if name is not None]
        try:
            for batch in file.iter_batches(batch_size=batch_rows, columns=chosen):
                column = batch.column(vector)
                for name in chosen:
                    if batch.column(name).null_count:
                        row = int(np.argmax(np.asarray(batch.column(name).is_null())))
                        raise DataError(
                            f"{path}, row {first + row}: {name!r} is missing; drop such rows"
                        )
                lengths = np.asarray(column.value_lengths())
                wrong = np.flatnonzero(lengths != dim)
                if len(wrong):
                    row = int(wrong[0])
                    raise DataError(
                        f"{path}, row {first + row}: {vector!r} has {lengths[row]} numbers, but rows have {dim} weights"
                    )
                flat = column.flatten()
                if flat.null_count:
                    row = int(np.argmax(np.asarray(flat.is_null()))) // dim
                    raise DataError(
                        f"{path}, row {first + row}: {vector!r} has a missing number; drop such rows"
                    )
                weights = flat.to_numpy(zero_copy_only=False).reshape(-1, dim)
                numbers = (
                    np.arange(first, first + len(weights), dtype=np.int64)
                    if number is None
                    else _as_int64(batch.column(number).to_numpy(zero_copy_only=False))
                )
                yield numbers, _as_float32(weights)
                first += len(weights)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}, after row {first}: cannot be read: {error}") from None

    return read()


def _as_int64(ids: NDArray[Any]) -> NDArray[np.int64]:
    return np.ascontiguousarray(ids.view(np.int64) if ids.dtype == np.uint64 else ids, np.int64)


def _as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    # A value beyond float32 becomes infinite, which is an error that names it.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32)
