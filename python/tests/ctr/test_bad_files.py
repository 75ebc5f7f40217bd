"""Files that are not what their names say, or that changed: each is named with the fix, and none is trained on as if it were
valid.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rowmill.config import ConfigError, section_from
from rowmill.ctr.data import CRITEO, load_schema, open_source
from rowmill.ctr.data.generate import TEACHER_FILE, generate, teacher_scores
from rowmill.ctr.settings import GenerateConfig
from rowmill.errors import DataError

Lines = Callable[..., Path]
Line = Callable[..., str]


def read_all(path: Path) -> list[list[int]]:
    source = open_source(path)
    return [row for block in source.blocks(0, source.rows) for row in block.ids.tolist()]


def fails(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_all(path)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    generate(tmp_path / "log", GenerateConfig(rows=5_000, tables=26, rows_per_table=100))
    return tmp_path / "log"


def test_windows_line_endings_give_the_same_rows(write_tsv: Lines, line: Line) -> None:
    lines = [line(ids=[f"{row:x}", *["b"] * 24, ""]) for row in range(9)]
    unix = read_all(write_tsv(lines, "unix.tsv"))
    windows = write_tsv(lines, "windows.tsv")
    windows.write_bytes(windows.read_bytes().replace(b"\n", b"\r\n"))
    assert read_all(windows) == unix
    assert len(unix) == 9


def test_lines_that_end_with_only_a_carriage_return_are_refused(
    write_tsv: Lines, line: Line
) -> None:
    path = write_tsv([line()] * 5)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r"))
    fails(path, r"clicks\.tsv ends its lines with CR alone")


def test_the_error_for_a_header_line_says_so(write_tsv: Lines, line: Line) -> None:
    path = write_tsv(["\t".join(CRITEO.names), line()])
    fails(
        path,
        r"line 1: label must be a number, got 'label' .*a TSV log has no header: remove line 1",
    )


@pytest.mark.parametrize("name", ["clicks.tsv", "clicks.tsv.gz", "clicks"])
def test_the_error_for_a_compressed_file_says_so(tmp_path: Path, line: Line, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(line().encode()))
    if name == "clicks":
        fails(path, "is not a Parquet file, and its name does not end in")
    else:
        fails(path, "is compressed.*: unpack it first")


def test_the_error_for_a_folder_of_compressed_files_names_one(tmp_path: Path, line: Line) -> None:
    (tmp_path / "day_0.tsv.gz").write_bytes(gzip.compress(line().encode()))
    fails(tmp_path, r"holds no \*\.parquet .*; unpack day_0\.tsv\.gz first")


def test_a_compressed_file_beside_others_is_refused(tmp_path: Path, line: Line) -> None:
    for day in (0, 1):
        (tmp_path / f"day_{day}.tsv").write_text(line())
    (tmp_path / "day_1.tsv.gz").write_bytes(gzip.compress(line().encode()))
    (tmp_path / "days.tar.gz").write_bytes(gzip.compress(line().encode()))
    assert len(read_all(tmp_path)) == 2
    (tmp_path / "day_1.tsv").unlink()
    fails(tmp_path, r"day_1\.tsv\.gz is compressed: unpack it first, or move it elsewhere")


@pytest.mark.parametrize("ending", ["\n\n", "\r\n\r\n", "\n\n\n"])
def test_an_empty_last_line_is_named_before_training(
    write_tsv: Lines, line: Line, ending: str
) -> None:
    path = write_tsv([line()] * 5)
    path.write_bytes(path.read_bytes().rstrip(b"\n") + ending.encode())
    with pytest.raises(DataError, match=r"line [67]: the last line is empty: remove it"):
        open_source(path)


@pytest.mark.parametrize("name", ["a.tsv", "a.parquet"])
def test_a_log_without_rows_is_refused(tmp_path: Path, log: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    if name.endswith("parquet"):
        pq.write_table(pq.read_table(log / "part-00000.parquet").slice(0, 0), path)
    fails(path, f"{name} has no rows")


def test_text_of_another_encoding_is_refused(write_tsv: Lines, line: Line) -> None:
    path = write_tsv([line()])
    path.write_text(line(), encoding="utf-16")
    fails(path, "holds zero bytes, so it is not UTF-8 text")


def test_binary_data_is_refused_without_output_of_the_reader(
    write_tsv: Lines, line: Line, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_tsv([line()])
    path.write_bytes(line().encode() + b"\n\xff\xfe\xc3\n")
    fails(path, r"clicks\.tsv, line 2: 1 fields, expected 40")
    assert capfd.readouterr().err == ""


def test_a_parquet_file_named_tsv_is_refused(tmp_path: Path, log: Path) -> None:
    shutil.copy(log / "part-00000.parquet", tmp_path / "a.tsv")
    fails(tmp_path / "a.tsv", r"a\.tsv is a parquet file: name it \*\.parquet")


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tsv")
    fails(tmp_path / "a.tsv", r"a\.tsv is a pipe or a device")


def test_a_file_without_read_permission_is_named(write_tsv: Lines, line: Line) -> None:
    path = write_tsv([line()])
    path.chmod(0)
    before = os.geteuid()
    if before == 0:
        for folder in path.parents[:4]:
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        fails(path, r"clicks\.tsv cannot be read: Permission denied")
    finally:
        os.seteuid(before)


def test_flipped_bits_and_truncation_of_a_generated_log_are_detected_or_harmless(
    tmp_path: Path, log: Path
) -> None:
    """Pages have checksums; damage between them breaks the structure of the file."""
    intact = (log / "part-00000.parquet").read_bytes()
    expected = _values(log / "part-00000.parquet")
    stream = np.random.default_rng(7)
    path = tmp_path / "damaged.parquet"
    noticed = 0
    for place in stream.integers(0, len(intact), 150):
        damaged = bytearray(intact)
        damaged[place] ^= 1 << int(stream.integers(8))
        noticed += _noticed(path, bytes(damaged), expected)
    assert noticed > 140, "most bytes of the file are in pages"
    for length in stream.integers(0, len(intact), 20):
        assert _noticed(path, intact[:length], expected)


def _noticed(path: Path, content: bytes, expected: list[Any]) -> bool:
    path.write_bytes(content)
    found, message = expected, ""
    try:
        found = _values(path)
    except DataError as error:
        message = str(error)
    if message:
        assert "damaged.parquet" in message
        return True
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, expected, strict=True))
    return False


def _values(path: Path) -> list[Any]:
    source = open_source(path)
    blocks = list(source.blocks(0, source.rows))
    return [
        np.concatenate([getattr(block, name) for block in blocks])
        for name in ("labels", "dense", "ids")
    ]


def test_a_column_with_different_types_in_two_files_is_named(tmp_path: Path, log: Path) -> None:
    table = pq.read_table(log / "part-00000.parquet")
    shutil.copy(log / "part-00000.parquet", tmp_path / "a.parquet")
    words = table.set_column(14, "C1", pa.array(["word"] * table.num_rows))
    pq.write_table(words, tmp_path / "b.parquet")
    fails(tmp_path, r"b\.parquet, row 0 .*'C1' must hold 64-bit integers, got type string")


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"last_fifth": 3}', "\0"])
def test_invalid_scores_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / TEACHER_FILE).write_text(content)
    with pytest.raises(
        DataError, match=r"teacher\.json does not hold the metrics of a teacher: delete"
    ):
        teacher_scores(tmp_path, 80)
    if not content.startswith("{"):
        with pytest.raises(DataError, match=r"teacher\.json does not hold"):
            generate(tmp_path, GenerateConfig(rows=10))


def test_generating_a_log_does_not_overwrite_a_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("mine")
    with pytest.raises(DataError, match="log is a file, but a log is a folder"):
        generate(tmp_path / "log", GenerateConfig(rows=10))
    assert (tmp_path / "log").read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1 << 44), ("rows_per_table", 1 << 41), ("tables", 5000), ("rows", -1)],
)
def test_settings_beyond_the_limits_of_the_generator_are_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"generate\.{key} must be an integer of .* got {value}"):
        section_from("generate", {"rows": 10, key: value})


def test_the_largest_settings_generate(tmp_path: Path) -> None:
    settings = {"rows": 10, "seed": (1 << 44) - 1, "rows_per_table": 1 << 40, "tables": 2}
    generate(tmp_path, section_from("generate", settings))
    assert pq.read_table(tmp_path / "part-00000.parquet").num_rows == 10


def test_a_binary_schema_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_bytes(b"\xb6\xff")
    with pytest.raises(DataError, match=r"schema\.toml is not valid TOML"):
        load_schema(tmp_path / "schema.toml")
    with pytest.raises(DataError, match=r"cannot be read: Is a directory"):
        load_schema(tmp_path)
