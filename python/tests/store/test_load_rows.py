"""`rowmill.load_rows`: vectors of `.npy`, Parquet and state dicts of torch become rows; what does not fit is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import rowmill
from rowmill.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rowmill.store.tables import Table

DIM = 3
VECTORS = np.arange(60, dtype=np.float32).reshape(20, DIM) / 7
IDS = np.arange(20, dtype=np.int64) * -5
_arrow: Any = pa


@pytest.fixture
def table(store: rowmill.Store) -> Table:
    return store.table("words", dim=DIM, optimizer=rowmill.optim.SGD(lr=0.5))


def lists(values: np.ndarray[Any, Any], kind: Any = None) -> Any:
    return _arrow.array(values.tolist(), kind or _arrow.list_(_arrow.float32(), values.shape[1]))


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(_arrow.table(columns), path, row_group_size=7)
    return path


def write_npy(path: Path, array: np.ndarray[Any, Any]) -> Path:
    np.save(path, array)
    return path


def write_torch(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize("batch_rows", [1, 6, 1000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_npy_with_ids_beside_it(table: Table, tmp_path: Path, batch_rows: int, dtype: str) -> None:
    file = write_npy(tmp_path / "words.npy", VECTORS.astype(dtype))
    write_npy(tmp_path / "words.ids.npy", IDS)
    assert rowmill.load_rows(table, file, batch_rows=batch_rows) == 20
    np.testing.assert_array_equal(table.get(IDS), VECTORS.astype(dtype).astype(np.float32))
    assert len(table) == 20


def test_without_ids_the_number_of_the_row_is_the_id(store: rowmill.Store, tmp_path: Path) -> None:
    table = store.table("dense", dim=DIM, optimizer=rowmill.optim.SGD(lr=0.5), num_rows=20)
    file = write_npy(tmp_path / "words.npy", VECTORS)
    assert rowmill.load_rows(table, str(file), batch_rows=3) == 20
    np.testing.assert_array_equal(table.get(np.arange(20)), VECTORS)


def test_ids_of_another_file_and_the_last_of_equal_ids_wins(table: Table, tmp_path: Path) -> None:
    file = write_npy(tmp_path / "words.npy", VECTORS)
    ids = write_npy(tmp_path / "numbers.npy", np.full(20, 7, np.uint64))
    assert rowmill.load_rows(table, file, ids=ids) == 20
    np.testing.assert_array_equal(table.get([7]), VECTORS[-1:])


@pytest.mark.parametrize(
    "kind",
    [
        _arrow.list_(_arrow.float32(), DIM),
        _arrow.list_(_arrow.float64()),
        _arrow.large_list(_arrow.float32()),
    ],
)
def test_parquet(table: Table, tmp_path: Path, kind: Any) -> None:
    file = write_parquet(tmp_path / "a.parquet", id=IDS, vector=lists(VECTORS, kind))
    assert rowmill.load_rows(table, file, batch_rows=5) == 20
    np.testing.assert_array_equal(table.get(IDS), VECTORS)


def test_parquet_with_other_columns(table: Table, tmp_path: Path) -> None:
    file = write_parquet(
        tmp_path / "a.parquet", key=IDS.astype(np.int32), text=["x"] * 20, values=lists(VECTORS)
    )
    assert rowmill.load_rows(table, file, vectors="values", ids="key") == 20
    np.testing.assert_array_equal(table.get(IDS), VECTORS)
    assert rowmill.load_rows(table, file, vectors="values") == 20
    np.testing.assert_array_equal(table.get(np.arange(20)), VECTORS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_state_dict(table: Table, tmp_path: Path, dtype: torch.dtype) -> None:
    matrix = torch.from_numpy(VECTORS).to(dtype)
    content = {"state_dict": {"emb.weight": matrix, "head.bias": torch.zeros(4)}, "epoch": 3}
    file = write_torch(tmp_path / "a.pt", content)
    assert rowmill.load_rows(table, file, batch_rows=6) == 20
    np.testing.assert_array_equal(table.get(np.arange(20)), matrix.float().numpy())
    ids = write_npy(tmp_path / "ids.npy", IDS)
    assert rowmill.load_rows(table, file, vectors="emb.weight", ids=ids) == 20
    np.testing.assert_array_equal(table.get(IDS), matrix.float().numpy())


def test_rows_of_ftrl_go_on_from_their_weights(store: rowmill.Store, tmp_path: Path) -> None:
    optimizer = rowmill.optim.FTRL(lr=0.1, l1=0.01, l2=0.02, initial_accumulator=0.5)
    table = store.table("words", dim=DIM, optimizer=optimizer)
    rowmill.load_rows(table, write_npy(tmp_path / "a.npy", VECTORS))
    table.rmw(np.arange(20), np.zeros_like(VECTORS))
    np.testing.assert_allclose(table.get(np.arange(20)), VECTORS, rtol=1e-5)


def test_vectors_that_a_run_wrote_are_read(table: Table, tmp_path: Path) -> None:
    from rowmill.saved.new_files import NpyFile, ParquetFile

    with ParquetFile(tmp_path / "words.parquet") as parquet, NpyFile(tmp_path / "words.npy") as npy:
        for start in (0, 12):
            part = slice(start, start + 12)
            parquet.write({"id": IDS[part], "vector": VECTORS[part]})
            npy.write(VECTORS[part])
    write_npy(tmp_path / "words.ids.npy", IDS)
    for name in ("words.parquet", "words.npy"):
        table.delete(IDS)
        assert rowmill.load_rows(table, tmp_path / name) == 20
        np.testing.assert_array_equal(table.get(IDS), VECTORS)


def _broken(path: Path) -> Path:
    path.write_bytes(b"nothing")
    return path


def _with(place: tuple[int, int], value: float) -> np.ndarray[Any, Any]:
    changed = VECTORS.astype(np.float64)
    changed[place] = value
    return changed


WRONG: list[tuple[Callable[[Path], Path], dict[str, Any], str]] = [
    (lambda f: f / "none.npy", {}, "none.npy does not exist, or is no file"),
    (lambda f: _broken(f / "a.npy"), {}, "a.npy is not a readable .npy file"),
    (lambda f: _broken(f / "a.parquet"), {}, "a.parquet is not a readable Parquet file"),
    (lambda f: _broken(f / "a.pt"), {}, "a.pt is not a readable state dict"),
    (lambda f: _broken(f / "a.txt"), {}, "must be .npy, .parquet, or a state dict of torch"),
    (
        lambda f: write_npy(f / "a.npy", VECTORS[:, :2]),
        {},
        "a.npy has shape [20, 2], but rows of table 'words' have 3 weights: it must be [n, 3]",
    ),
    (lambda f: write_npy(f / "a.npy", VECTORS.astype(int)), {}, "a.npy is int64: vectors must be"),
    (
        lambda f: write_npy(f / "a.npy", VECTORS),
        {"vectors": "x"},
        "vectors = 'x', but",
    ),
    (
        lambda f: write_npy(f / "a.npy", VECTORS),
        {"ids": "nowhere.npy"},
        "ids: nowhere.npy does not exist",
    ),
    (
        lambda f: write_npy(write_npy(f / "a.ids.npy", IDS[:4]).with_name("a.npy"), VECTORS),
        {},
        "has 20 vectors, but there are 4 ids",
    ),
    (
        lambda f: write_npy(write_npy(f / "a.ids.npy", IDS / 2).with_name("a.npy"), VECTORS),
        {},
        "a.ids.npy is float64 [20]; ids must be integers [n]",
    ),
    (
        lambda f: write_npy(f / "a.npy", _with((13, 1), np.nan)),
        {"batch_rows": 4},
        "a.npy, row 13: weight 1 is nan as float32",
    ),
    (
        lambda f: write_npy(f / "a.npy", _with((2, 0), 1e300)),
        {},
        "a.npy, row 2: weight 0 is inf as float32",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", values=lists(VECTORS)),
        {},
        "a.parquet has no column 'vector'; it has values",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", vector=lists(VECTORS)),
        {"ids": "key"},
        "a.parquet has no column 'key'; it has vector",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", vector=IDS),
        {},
        "column 'vector' is int64; vectors must be lists of 3 float16, float32 or float64",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", id=["a"] * 20, vector=lists(VECTORS)),
        {},
        "column 'id' is string; ids must be integers",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", vector=[[1.0] * 3] * 9 + [[1.0] * 2]),
        {"batch_rows": 4},
        "a.parquet, row 9: 'vector' has 2 numbers, but rows have 3 weights",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", vector=[[1.0] * 3] * 9 + [None]),
        {"batch_rows": 4},
        "a.parquet, row 9: 'vector' is missing",
    ),
    (
        lambda f: write_parquet(f / "a.parquet", vector=[[1.0] * 3] * 9 + [[1.0, None, 2.0]]),
        {"batch_rows": 4},
        "a.parquet, row 9: 'vector' has a missing number",
    ),
    (
        lambda f: write_torch(f / "a.pt", {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3)}),
        {},
        "a.pt has 2 matrices: say which one holds the vectors (vectors); it has a, b",
    ),
    (
        lambda f: write_torch(f / "a.pt", {"x.a": torch.zeros(2, 3), "y.a": torch.zeros(2, 3)}),
        {"vectors": "a"},
        "a.pt has 2 tensors that end in 'a'; it has x.a, y.a",
    ),
    (
        lambda f: write_torch(f / "a.pt", {"a": torch.zeros(2, 3)}),
        {"vectors": "weight"},
        "a.pt has no tensor 'weight'; it has a",
    ),
    (
        lambda f: write_torch(f / "a.pt", {"a": torch.zeros(2, 4)}),
        {},
        "a.pt, a has shape [2, 4]",
    ),
]


@pytest.mark.parametrize(("write", "options", "message"), WRONG)
def test_what_does_not_fit_is_named(
    table: Table,
    tmp_path: Path,
    write: Callable[[Path], Path],
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        rowmill.load_rows(table, write(tmp_path), **options)


def test_ids_beyond_the_table_are_named_with_their_row(
    store: rowmill.Store, tmp_path: Path
) -> None:
    table = store.table("dense", dim=DIM, optimizer=rowmill.optim.SGD(lr=0.5), num_rows=12)
    file = write_npy(tmp_path / "a.npy", VECTORS)
    message = r"a.npy, row 12: ids of table 'dense' are in \[0, 12\), got 12"
    with pytest.raises(DataError, match=message):
        rowmill.load_rows(table, file, batch_rows=5)
