"""Reading a knowledge graph: numbering by first appearance; each error names file, line, value and fix."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rowmill.errors import DataError
from rowmill.kge.graph import read_graph

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"train": "a\tlikes\tb\nb\tknows\tc\n", "valid": "a\tknows\tb\n", "test": "c\tlikes\tc\n"}


def write(folder: Path, **parts: str | bytes | None) -> Path:
    for part, text in {**GOOD, **parts}.items():
        if text is not None:
            (folder / f"{part}.tsv").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def test_names_get_numbers_as_they_appear(tmp_path: Path) -> None:
    graph = read_graph(write(tmp_path))
    assert graph.entities.to_pylist() == ["a", "b", "c"]
    assert graph.relations.to_pylist() == ["likes", "knows"]
    assert graph.train.tolist() == [[0, 0, 1], [1, 1, 2]]
    assert graph.valid.tolist() == [[0, 1, 1]]
    assert graph.test.tolist() == [[2, 0, 2]]
    graph.write_names(tmp_path)
    assert (tmp_path / "entities.txt").read_text() == "a\nb\nc\n"


def test_names_may_be_any_text(tmp_path: Path) -> None:
    train = '"a\t-\té ü\r\n"a\tnull\t" "\nNA\t-\té ü'
    graph = read_graph(write(tmp_path, train=train, valid='NA\t-\t" "\n', test='"a\t-\tNA\n'))
    assert graph.entities.to_pylist() == ['"a', "NA", "é ü", '" "']
    assert graph.relations.to_pylist() == ["-", "null"]
    assert graph.train.dtype == np.int64


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"train": "a\tr\tb\na\tb\n"},
            r"train\.tsv, line 2: 'a\\tb' has 2 columns, not 3; a line is head<TAB>",
        ),
        (
            {"valid": "a\tknows\tb\tx\n"},
            r"valid\.tsv, line 1: 'a\\tknows\\tb\\tx' has 4 columns, not 3",
        ),
        (
            {"test": "c\tlikes\tc\n\nc\tlikes\tb\n"},
            r"test\.tsv, line 2: the head is empty; a line is",
        ),
        ({"train": "a b c\n"}, r"train\.tsv, line 1: 'a b c' has 1 columns"),
        ({"train": "a\tr\tb\na\t\tb\n"}, r"train\.tsv, line 2: the relation is empty"),
        ({"train": "\tr\tb\n"}, r"train\.tsv, line 1: the head is empty"),
        ({"train": ""}, r"train\.tsv is empty; give it at least one triple"),
        ({"test": ""}, r"test\.tsv is empty"),
        ({"train": b"a\tr\tb\na\tr\t\xff\n"}, r"train\.tsv, line 2: .* is not UTF-8; save"),
        # Neither three columns nor UTF-8: building the error message must not fail on the bytes.
        ({"train": b"a\tr\tb\n\xff\xfe\n"}, r"train\.tsv, line 2: .* is not UTF-8; save"),
        ({"train": gzip.compress(b"a\tr\tb\n")}, r"train\.tsv is compressed with gzip: unpack it"),
        ({"valid": "a\tlikes\tb\n".encode("utf-16")}, r"valid\.tsv holds zero bytes"),
        (
            {"train": "a\tr\tb\n" + "x" * 3_000_000 + "\tr\tb\n"},
            r"train\.tsv, line 2 has 3,000,005 bytes, but at most 1,048,576",
        ),
        ({"train": "a\tr\tb\n" + "x" * 100 + "\n"}, r"line 2: 'x{60}\.\.\.' has 1 columns"),
        ({"test": None}, r"test\.tsv does not exist; give a folder with"),
        (
            {"valid": "a\tlikes\tb\na\thates\tb\na\tnotes\tb\n"},
            r"valid\.tsv, line 2: relation 'hates' is not in train\.tsv \(2 such lines\); drop such lines",
        ),
        (
            {"test": "a\tlikes\tb\na\tlikes\tx\n"},
            r"test\.tsv, line 2: tail 'x' is not in train\.tsv \(1 such lines\); drop .* set kge\.unseen to",
        ),
        ({"test": "y\tlikes\tb\n"}, r"test\.tsv, line 1: head 'y' is not in train\.tsv"),
    ],
)
def test_malformed_files_are_errors_with_line_and_fix(
    tmp_path: Path, parts: dict[str, str | bytes | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(write(tmp_path, **parts))


def test_unseen_entities_can_be_ranked(tmp_path: Path) -> None:
    write(tmp_path, valid="x\tlikes\tb\n", test="a\tlikes\ty\n")
    graph = read_graph(tmp_path, unseen="rank")
    assert graph.entities.to_pylist() == ["a", "b", "c", "x", "y"]
    assert graph.test.tolist() == [[0, 0, 4]]
    write(tmp_path, test="a\thates\ty\n")
    with pytest.raises(DataError, match="relation 'hates'"):
        read_graph(tmp_path, unseen="rank")


def test_a_file_or_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a folder; give a folder with train\.tsv"):
        read_graph(write(tmp_path) / "train.tsv")
    with pytest.raises(DataError, match="is not a folder"):
        read_graph(tmp_path / "nowhere")


def test_a_pipe_is_refused_without_opening_it(tmp_path: Path) -> None:
    folder = write(tmp_path, test=None)
    os.mkfifo(folder / "test.tsv")
    with pytest.raises(DataError, match=r"test\.tsv is not a regular file"):
        read_graph(folder)
