"""Reading click logs: every format gives the same rows, from any starting row; errors name the position and the fix.

A reader that loses the row number, skips a short line or returns a float id would silently train on wrong data.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowmill.ctr.data import CRITEO, MISSING_ID, RowBlock, Schema, load_schema, open_source
from rowmill.ctr.data import tsv as tsv_module
from rowmill.errors import DataError

Lines = Callable[..., Path]
Line = Callable[..., str]
SMALL = Schema(label="y", dense=("x",), ids=("user", "item"))


def joined(blocks: Iterator[RowBlock]) -> RowBlock:
    parts = list(blocks)
    return RowBlock(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.dense for part in parts]),
        np.concatenate([part.ids for part in parts]),
    )


def small_table() -> pa.Table:
    return pa.table(
        {
            "y": pa.array([0, 1, 1], pa.int8()),
            "x": pa.array([1, None, -3], pa.int32()),
            "user": pa.array([7, 8, None], pa.int64()),
            "item": pa.array([2**63 + 5, 1, 2], pa.uint64()),
            "other": ["a", "b", "c"],
        }
    )


def expected_small(block: RowBlock) -> None:
    assert block.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(block.dense[:, 0], [1, np.nan, -3])
    assert block.ids[:, 0].tolist() == [7, 8, MISSING_ID]
    assert block.ids[:, 1].view(np.uint64).tolist() == [2**63 + 5, 1, 2]


def test_tables_of_arrow_polars_and_pandas_agree() -> None:
    table = small_table()
    nullable = table.to_pandas(types_mapper={pa.int64(): pandas.Int64Dtype()}.get)
    for given in (table, polars.from_arrow(table), nullable, table.to_batches()[0]):
        source = open_source(given, SMALL)
        assert source.rows == 3
        expected_small(joined(source.blocks(0, 3)))


def test_dictionary_encoded_ids_are_ids() -> None:
    table = small_table()
    encoded = table.set_column(2, "user", table["user"].dictionary_encode())
    expected_small(joined(open_source(encoded, SMALL).blocks(0, 3)))


def test_parquet_is_read_from_any_row_across_row_groups_and_files(
    tmp_path: Path, criteo_columns: Callable[[int], dict[str, Any]]
) -> None:
    table = pa.table(criteo_columns(25))
    pq.write_table(table.slice(0, 11), tmp_path / "a.parquet", row_group_size=4)
    pq.write_table(table.slice(11), tmp_path / "b.parquet", row_group_size=5)
    (tmp_path / "teacher.json").write_text("{}")
    source = open_source(tmp_path)
    assert source.rows == 25
    whole = joined(source.blocks(0, 25))
    assert whole.ids[:, 3].tolist() == [3000 + row for row in range(25)]
    for start, stop in [(0, 1), (3, 5), (10, 12), (11, 25), (7, 24)]:
        part = joined(source.blocks(start, stop))
        np.testing.assert_array_equal(part.ids, whole.ids[start:stop])
        np.testing.assert_array_equal(part.labels, whole.labels[start:stop])
    assert list(source.blocks(25, 25)) == []


def test_tsv_is_read_from_any_row_across_blocks_and_files(
    write_tsv: Lines, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tsv_module, "_BLOCK_BYTES", 2000)
    monkeypatch.setattr(tsv_module, "_SCAN_BYTES", 500)
    lines = [line(str(row % 2), [str(row)] * 13, [f"{row:x}"] * 26) for row in range(40)]
    write_tsv(lines[:23], "a.tsv")
    write_tsv(lines[23:], "b.tsv", end="")
    source = open_source(tmp_path)
    assert source.rows == 40
    for start in (0, 1, 9, 22, 23, 24, 39):
        block = joined(source.blocks(start, 40))
        assert block.ids[:, 0].tolist() == list(range(start, 40))
        assert block.dense[:, 12].tolist() == list(range(start, 40))
    assert joined(source.blocks(20, 26)).labels.tolist() == [0, 1, 0, 1, 0, 1]


def test_hex_ids_keep_all_64_bits_and_empty_fields_are_missing(
    write_tsv: Lines, line: Line
) -> None:
    ids = ["ffffffffffffffff", "68fd1e64", "", "A", *["0"] * 22]
    path = write_tsv([line("0", [""] * 12 + ["-2"], ids)])
    block = joined(open_source(path).blocks(0, 1))
    assert block.ids[0, :4].tolist() == [-1, 0x68FD1E64, MISSING_ID, 10]
    assert np.isnan(block.dense[0, :12]).all()
    assert block.dense[0, 12] == -2


def test_ids_in_base_10(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text("1\t12\t-5\n0\t\t99\n")
    schema = Schema(label="y", dense=(), ids=("user", "item"), id_base=10)
    assert joined(open_source(path, schema).blocks(0, 2)).ids.tolist() == [
        [12, -5],
        [MISSING_ID, 99],
    ]


def read_all(data: Any, schema: Schema) -> None:
    source = open_source(data, schema)
    list(source.blocks(0, source.rows))


def fails(data: Any, message: str, schema: Schema = CRITEO) -> None:
    with pytest.raises(DataError, match=message):
        read_all(data, schema)


def test_a_line_with_twelve_integers_is_named(write_tsv: Lines, line: Line) -> None:
    good, short = line(), line(dense=["1"] * 12)
    path = write_tsv([good, good, short, good])
    fails(path, r"clicks\.tsv, line 3: 39 fields, expected 40 \(label, 13 integers, 26 ids")
    with pytest.raises(DataError, match="line 3: 39 fields"):
        list(open_source(path).blocks(1, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "2"}, r"line 2: label 'label' must be 0 or 1, got 2\.0"),
        ({"label": ""}, "line 2: label 'label' is missing"),
        ({"label": "yes"}, "line 2: label must be a number, got 'yes'"),
        ({"dense": ["7", "x7", *["1"] * 11]}, "line 2: I2 must be a number, got 'x7'"),
        ({"dense": ["inf", *["1"] * 12]}, "line 2: 'I1' is infinite"),
        (
            {"ids": ["zz", *["1"] * 25]},
            "line 2: C1 must be hexadecimal, got 'zz': for decimal ids set id_base = 10",
        ),
        ({"ids": ["é", *["1"] * 25]}, "line 2: C1 must be hexadecimal, got 'é'"),
        (
            {"ids": ["0" * 17, *["1"] * 25]},
            "line 2: C1 must have at most 16 hex digits .* got '00000000000000000'",
        ),
        ({"ids": ["8000000000000000", *["1"] * 25]}, "line 2: C1 is .*reserved for missing"),
    ],
)
def test_an_invalid_value_in_a_tsv_file_is_named(
    write_tsv: Lines, line: Line, change: dict[str, Any], message: str
) -> None:
    fails(write_tsv([line(), line(**change), line()]), rf"clicks\.tsv, {message}")


def test_an_empty_line_is_an_error(write_tsv: Lines, line: Line) -> None:
    fails(write_tsv([line(), "", line()]), "line 2: label 'label' is missing")


def test_a_missing_file_is_an_error() -> None:
    fails(Path("nowhere.parquet"), r"nowhere\.parquet does not exist")


def test_a_file_of_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    other = tmp_path / "notes.md"
    other.write_text("hello")
    fails(other, "is not a Parquet file, and its name does not end in")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing else")
    fails(broken, r"broken\.parquet is not a readable Parquet file")
    fails(tmp_path / "empty", "does not exist")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", r"holds no \*\.parquet and no \*\.tsv")
    fails(3.5, "cannot read a float")


def test_two_formats_in_one_folder_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "b.tsv").write_bytes(b"")
    fails(tmp_path, r"holds both a\.parquet and b\.tsv")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (
            "user",
            pa.array([1.0, 2.0, 3.0]),
            "row 0 .*id column 'user' must hold 64-bit integers, got type double",
        ),
        (
            "user",
            pa.array(["a", "b", "c"]),
            "id column 'user' must hold 64-bit integers, got type string",
        ),
        (
            "user",
            pa.array([1, MISSING_ID, 2]),
            r"row 1 \(from 0\): id column 'user' holds .*reserved for missing",
        ),
        ("y", pa.array([0, 1, 2]), r"row 2 \(from 0\): label 'y' must be 0 or 1, got 2"),
        ("y", pa.array([0, None, 1]), r"row 1 \(from 0\): label 'y' is missing"),
        (
            "y",
            pa.array(["0", "1", "0"]),
            "label column 'y' must hold the numbers 0 and 1, got type string",
        ),
        (
            "x",
            pa.array(["1", "2", "3"]),
            "numeric column 'x' must hold numbers, got type string: cast it",
        ),
        ("x", pa.array([1.0, float("inf"), 0.0]), r"row 1 \(from 0\): 'x' is infinite"),
    ],
)
def test_an_invalid_column_is_named_in_files_and_tables(
    tmp_path: Path, column: str, values: pa.Array, message: str
) -> None:
    table = small_table()
    table = table.set_column(table.column_names.index(column), column, values)
    fails(table, f"the table, .*{message}" if "row" in message else message, SMALL)
    path = tmp_path / "log.parquet"
    pq.write_table(table, path)
    fails(path, rf"log\.parquet, .*{message}" if "row" in message else message, SMALL)


def test_the_error_for_a_missing_column_lists_the_existing_ones(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(small_table().drop_columns("item"), path)
    fails(
        path,
        "has no column 'item'; it has y, x, user, other. Name your columns in a schema file",
        SMALL,
    )


def test_schema_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(
        'label = "y"\ndense = ["x"]\nids = ["user"]\ncolumns = ["user", "y", "x", "z"]\nid_base = 10\n'
    )
    schema = load_schema(path)
    assert schema.names == ["y", "x", "user"]
    log = tmp_path / "log.tsv"
    log.write_text("5\t1\t2.5\tignored\n")
    block = joined(open_source(log, schema).blocks(0, 1))
    assert (block.ids.tolist(), block.labels.tolist(), block.dense.tolist()) == (
        [[5]],
        [1.0],
        [[2.5]],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('label = "y"', "lacks the key 'dense'"),
        ('label = "y"\ndense = []\nids = []', "names no id column"),
        ('label = "y"\ndense = "x"\nids = ["u"]', "dense must be a list of column names, got 'x'"),
        ('label = "y"\ndense = ["y"]\nids = ["u"]', "names column 'y' twice"),
        (
            'label = "y"\ndense = []\nids = ["u"]\ncolumns = ["y"]',
            "column 'u' has a role but is not in 'columns'",
        ),
        ('label = "y"\ndense = []\nids = ["u"]\nid_base = 7', "id_base must be 10 or 16, .* got 7"),
        ('label = "y"\ndense = []\nids = ["u"]\nrows = 7', "unknown key 'rows'"),
        ("label = y", "not valid TOML"),
    ],
)
def test_errors_of_schema_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_schema(path)


def test_a_missing_schema_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_schema(tmp_path / "schema.toml")
