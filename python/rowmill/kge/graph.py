"""Read a knowledge graph from a folder with `train.tsv`, `valid.tsv` and `test.tsv`, one triple per line.

A line is `head<TAB>relation<TAB>tail`; the names may be any text without tabs. Entities and relations are numbered in
the order in which they first appear, all heads before all tails, so equal files give equal numbers. Those that a run knows keep
their numbers, and new ones follow.
"""

# pyarrow has no types: everything read through it is unknown.
# pyright: reportUnknownArgumentType=none, reportUnknownParameterType=none, reportUnknownVariableType=none

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from zlib import crc32

import numpy as np

from rowmill._extras import extra
from rowmill.errors import DataError
from rowmill.files import check_text

with extra("train"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as csv

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

PARTS = ("train", "valid", "test")
COLUMNS = ("head", "relation", "tail")
_SHOWN = 60
_LINE_BYTES = 1 << 20
"""Longest line that fits into pyarrow's parse buffer."""
_WRONG_COUNT = re.compile(r"Row #(\d+): Expected \d+ columns, got (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class Graph:
    """Triples as numbers, int64 `[n, 3]`: head, relation, tail.

    `entities` and `relations` are the names by number. New entities that occur only in valid or test have the last numbers.
    """

    entities: pa.Array
    relations: pa.Array
    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    @property
    def entity_count(self) -> int:
        """Number of entities in train, valid and test."""
        return len(self.entities)

    @property
    def relation_count(self) -> int:
        """Number of distinct relations."""
        return len(self.relations)

    def write_names(self, folder: Path) -> None:
        """Write `entities.txt` and `relations.txt`: the name of number 0 on the first line, and so on."""
        for names, file in ((self.entities, "entities.txt"), (self.relations, "relations.txt")):
            # A run that resumes and is killed here keeps the files that it had.
            unfinished = folder / f".{file}"
            with unfinished.open("w", encoding="utf-8") as opened:
                opened.writelines(f"{name}\n" for name in names)
            unfinished.replace(folder / file)

    def fingerprint(self) -> str:
        """Checksum of all triples, 8 hex digits; resume uses it to reject a different graph of equal size."""
        check = 0
        for part in (self.train, self.valid, self.test):
            check = crc32(part.tobytes(), check)
        return f"{check:08x}"


def read_graph(
    folder: Path,
    *,
    unseen: Literal["error", "rank"] = "error",
    entities_before: Any = None,
    relations_before: Any = None,
) -> Graph:
    """Read train, valid and test triples.

    Args:
        folder: The folder with the three files.
        unseen: What to do with entities in valid or test that are not in train: "error" raises, "rank" numbers them
            too, so that they are ranked with their initial rows.
        entities_before: Names that have numbers from earlier data, as an Arrow array; None: none.
        relations_before: The same for relations.

    Raises:
        DataError: A file is missing, empty or malformed, or has an unknown relation or entity; names file and line.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; give a folder with train.tsv, valid.tsv and test.tsv"
        )
    parts = {part: read_triples(folder / f"{part}.tsv") for part in PARTS}
    train = parts["train"]
    known_entities, known_relations = (
        _as_column(names) for names in (entities_before, relations_before)
    )
    entities = _distinct(known_entities, *_ends(train))
    known = len(entities)
    relations = _distinct(known_relations, train["relation"])
    for part in ("valid", "test"):
        file, triples = folder / f"{part}.tsv", parts[part]
        _check_known(file, triples, "relation", relations)
        if unseen == "error":
            for column in ("head", "tail"):
                _check_known(file, triples, column, entities)
    if unseen == "rank":
        ends = (end for part in PARTS for end in _ends(parts[part]))
        entities = _distinct(known_entities, *ends)
        assert len(entities) >= known
    numbered = {
        part: np.stack(
            [
                _numbers(triples["head"], entities),
                _numbers(triples["relation"], relations),
                _numbers(triples["tail"], entities),
            ],
            axis=1,
        )
        for part, triples in parts.items()
    }
    return Graph(entities, relations, **numbered)


def read_triples(file: Path) -> pa.Table:
    """The triples of a file as text, in the columns head, relation and tail; every line is checked."""
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            # Opening a pipe would block until a writer opens it.
            raise DataError(f"{file} is not a regular file; give a file with one triple per line")
        with file.open("rb") as opened:
            check_text(opened.peek(), file)
        table = csv.read_csv(
            file,
            # With several threads, pyarrow's errors have no line numbers.
            csv.ReadOptions(column_names=list(COLUMNS), use_threads=False),
            csv.ParseOptions(
                delimiter="\t",
                quote_char=False,
                double_quote=False,
                ignore_empty_lines=False,
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(COLUMNS, pa.string()), strings_can_be_null=False
            ),
        )
    except FileNotFoundError:
        raise DataError(
            f"{file} does not exist; give a folder with train.tsv, valid.tsv and test.tsv"
        ) from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    except pa.ArrowInvalid as error:
        raise _unreadable(file, str(error)) from None
    if table.num_rows == 0:
        raise _empty(file)
    for column in COLUMNS:
        empty = table[column].index("").as_py()
        if empty >= 0:
            raise DataError(
                f"{file}, line {empty + 1}: the {column} is empty; a line is head<TAB>relation<TAB>tail"
            )
    return table


def _empty(file: Path) -> DataError:
    return DataError(f"{file} is empty; give it at least one triple")


def _unreadable(file: Path, said: str) -> DataError:
    """The error for a file that pyarrow cannot parse, given pyarrow's message."""
    if "Empty CSV" in said:
        return _empty(file)
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            if len(line) > _LINE_BYTES:
                return DataError(
                    f"{file}, line {number} has {len(line):,} bytes, but at most {_LINE_BYTES:,} are allowed; "
                    "a line is head<TAB>relation<TAB>tail"
                )
            try:
                line.decode()
            except UnicodeDecodeError:
                return DataError(
                    f"{file}, line {number}: {line[:_SHOWN]!r} is not UTF-8; save the file as UTF-8"
                )
    wrong = _WRONG_COUNT.search(said)
    if wrong is None:
        return DataError(f"{file} is not a file of triples: {said}")
    number, columns, text = wrong.groups()
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return DataError(
        f"{file}, line {number}: {text!r} has {columns} columns, not 3; a line is head<TAB>relation<TAB>tail"
    )


def _ends(triples: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    return triples["head"], triples["tail"]


def _as_column(names: Any) -> pa.ChunkedArray:
    return pa.chunked_array([] if names is None else [names], pa.string())


def _distinct(*columns: pa.ChunkedArray) -> pa.Array:
    """Distinct values in the order in which they first appear, all of an earlier column first."""
    chunks = [chunk for column in columns for chunk in column.chunks]
    return pa.chunked_array(chunks, pa.string()).unique()


def _numbers(column: pa.ChunkedArray, names: pa.Array) -> NDArray[np.int64]:
    return np.asarray(_places(column, names))


def _places(column: pa.ChunkedArray, names: pa.Array) -> pa.ChunkedArray:
    """The number of every value; null for a value that is not among the names."""
    options = pc.SetLookupOptions(value_set=names)
    return pc.call_function("index_in", [column], options).cast(pa.int64())


def _check_known(file: Path, triples: pa.Table, column: str, names: pa.Array) -> None:
    known = _places(triples[column], names).is_valid()
    line = known.index(pa.scalar(value=False)).as_py()
    if line < 0:
        return
    value = triples[column][line].as_py()
    unknown = np.count_nonzero(~np.asarray(known))
    if column == "relation":
        remedy = "drop such lines, because an untrained relation cannot be ranked"
    else:
        remedy = 'drop such lines, or set kge.unseen to "rank" to rank such entities with their initial rows'
    raise DataError(
        f"{file}, line {line + 1}: {column} {value!r} is not in train.tsv ({unknown} such lines); {remedy}"
    )
