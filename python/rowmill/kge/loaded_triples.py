"""A trained knowledge graph: scores of triples, filtered ranking, and answers to queries."""

# pyarrow has no types: everything read through it is unknown.
# pyright: reportUnknownArgumentType=none, reportUnknownParameterType=none, reportUnknownVariableType=none

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill._extras import extra
from rowmill.config.setting import ConfigError
from rowmill.errors import DataError, InvalidInput
from rowmill.kge.graph import COLUMNS, PARTS, Graph, read_graph, read_triples
from rowmill.kge.names import NAME_FILES, Names
from rowmill.kge.ranking import KnownTriples, rank
from rowmill.kge.scorer import BLOCK_QUERIES, Scorer
from rowmill.kge.task import build_model
from rowmill.nn import Embedding
from rowmill.saved.loaded_run import LoadedRun, Scored
from rowmill.size import check_int

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill.kge.models import TripleModel
    from rowmill.saved.saved_run import SavedRun

_GROUP_TRIPLES = 8192
_TOP_MAX = 1 << 20
_KINDS = ("entity", "relation", "entity")
"""The kind of each column of a triple."""


@dataclass(frozen=True)
class Answer:
    """An answer to a query.

    Attributes:
        name: Its name; None if the run has no names.
        number: Its number.
        score: The score of the triple with it.
    """

    name: str | None
    number: int
    score: float


class LoadedTriples(LoadedRun):
    """A knowledge graph embedding. `transform` takes triples: a file, one tuple or a sequence of them, or an integer array `[n, 3]`.

    Texts are names, integers are numbers; `#12` is the number 12 where it is not a name. `scored` and `evaluate` take such a
    file (TSV; Parquet with the columns head, relation and tail; `.npy`), or a folder with train.tsv, valid.tsv and test.tsv,
    of which a part is read. The score of a triple is the score of the query for its tail. Columns of the scores: `head`,
    `relation`, `tail` and `score`.
    """

    parts = ("test", "valid", "train")

    def __init__(self, saved: SavedRun, data: Path | None = None) -> None:
        super().__init__(saved)
        self._data = data
        settings = self.config.kge
        entities, relations = self.tables["entities"], self.tables["relations"]
        assert entities.num_rows is not None, "entities have numbers"
        assert relations.num_rows is not None, "relations have numbers"
        self.entity_count = entities.num_rows
        self.relation_count = relations.num_rows // (2 if settings.reciprocal else 1)
        model = build_model(
            self.config.model,
            settings,
            Embedding(entities.num_rows, entities.dim, table=entities),
            Embedding(relations.num_rows, relations.dim, table=relations),
        )
        self._model = model.eval()

    @property
    def model(self) -> TripleModel:
        """Scores `[n]`, called as `model(heads, relations, tails)`."""
        return self._model

    def transform(self, raw: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of heads, relations and tails, int64 `[n]` each."""
        heads, relations, tails = (
            torch.from_numpy(column.copy()) for column in self._numbers(raw).T
        )
        return heads, relations, tails

    @torch.no_grad()
    def predict(self, raw: Any) -> Tensor:
        """Scores of triples, float32 `[n]`."""
        triples = self._numbers(raw)
        return torch.from_numpy(np.concatenate([np.empty(0, np.float32), *self._scores(triples)]))

    @torch.no_grad()
    def scored(self, data: Path, part: str | None = None) -> Iterator[Scored]:
        """Scores of the triples of a file; see the class."""
        columns = self._columns(self._file(data, part))
        triples = self._triples(columns, str(data))
        for number, scores in enumerate(self._scores(triples)):
            first = number * _GROUP_TRIPLES
            shown = {name: columns[name].slice(first, len(scores)) for name in COLUMNS}
            yield Scored(scores, {**shown, "score": scores})

    def evaluate(self, data: Path, part: str | None = None) -> dict[str, float | None]:
        """MRR and hits@k of filtered ranking.

        Known triples are left out: the triples of the folder `data`, or, for a file, of the file and of the run's graph.
        """
        file = self._file(data, part)
        triples = self._triples(self._columns(file), str(file))
        if data.is_dir():
            known = [self._known(read_triples(data / f"{name}.tsv")) for name in PARTS]
        else:
            graph = self.graph
            known = [graph.train, graph.valid, graph.test, triples]
        known_triples = KnownTriples(known, asked=[triples])
        with self.threads():
            ranks = rank(
                self.model,
                triples,
                known_triples,
                entities=self.entity_count,
                reciprocal=self._reciprocal,
            )
        return ranks.figures()

    @torch.no_grad()
    def query(
        self,
        head: str | int | None,
        relation: str | int | None,
        tail: str | int | None,
        *,
        top: int = 10,
        filtered: bool = False,
    ) -> list[Answer]:
        """The best answers for the one part of a triple that is None, best first.

        Args:
            head: Name or number of an entity.
            relation: Name or number of a relation.
            tail: Name or number of an entity.
            top: Most answers to return.
            filtered: Leave out answers that the run's graph has, as ranking does.

        Raises:
            InvalidInput: Not exactly one part is None.
            DataError: A name is unknown (the message has the nearest ones), or the graph is missing.
        """
        given = (head, relation, tail)
        if sum(value is None for value in given) != 1:
            raise InvalidInput(
                f"exactly one of head, relation and tail must be unknown ('?' on the command line), got {given!r}"
            )
        count = check_int(top, "top", 1, _TOP_MAX)
        triple = np.array(
            [
                -1 if value is None else self._names(kind).number(value, name)
                for name, kind, value in zip(COLUMNS, _KINDS, given, strict=True)
            ]
        )
        asked = int(np.flatnonzero(triple < 0)[0])
        excluded = self._answers_in_graph(triple, asked) if filtered else np.empty(0, np.int64)
        if relation is None:
            numbers, scores = self._best_relations(triple, count, excluded)
        else:
            # Distances are rounded alike in blocks of any size; products are not.
            block = BLOCK_QUERIES if self.model.dot_scores else 1
            scorer = self._scorer(block)
            with self.threads():
                query = scorer.queries(triple[[2 - asked]], triple[[1]], heads_asked=asked == 0)
                numbers, scores = scorer.best(query, count, excluded)
        names = self._names(_KINDS[asked])
        shown = [None] * len(numbers) if names.names is None else names.of(numbers).to_pylist()
        return [
            Answer(name, int(number), float(score))
            for name, number, score in zip(shown, numbers, scores, strict=True)
        ]

    @cached_property
    def graph(self) -> Graph:
        """The graph that the run was trained on; raises `DataError` if it is missing or differs."""
        path = self._data or self.config.data.path
        if path is None or not path.exists():
            raise DataError(
                f"the graph of the run, {path}, does not exist: restore it, or pass its new path with --graph (data= of "
                "rowmill.load)"
            )
        entities, relations = (self._names_of_run[kind] for kind in NAME_FILES)
        graph = read_graph(
            path,
            unseen=self.config.kge.unseen,
            entities_before=None if entities is None else entities.names,
            relations_before=None if relations is None else relations.names,
        )
        if graph.fingerprint() != self.saved.identity["checksum of the triples"]:
            raise DataError(
                f"{path} is not the graph that {self.folder} was trained on: its triples have another checksum; pass that "
                "graph with --graph (data= of rowmill.load)"
            )
        return graph

    def names_of(self, table: str, ids: NDArray[np.int64]) -> Mapping[str, Any]:
        """`name` of each entity or relation, if the run has names; reciprocal relations have none."""
        kind = {"entities": "entity", "relations": "relation"}[table]
        names = self._names(kind)
        if names.names is None:
            return {}
        beyond = ids >= names.count
        shown = names.of(np.where(beyond, 0, ids))
        return {
            "name": pa.array(
                np.where(beyond, None, shown.to_numpy(zero_copy_only=False)), pa.string()
            )
        }

    @property
    def _reciprocal(self) -> int | None:
        return self.relation_count if self.config.kge.reciprocal else None

    def _scorer(self, block: int = BLOCK_QUERIES) -> Scorer:
        return Scorer(self.model, self.entity_count, reciprocal=self._reciprocal, block=block)

    def _scores(self, triples: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        scorer = self._scorer()
        for start in range(0, len(triples), _GROUP_TRIPLES):
            with self.threads():
                scores = scorer.of_triples(triples[start : start + _GROUP_TRIPLES])
            yield scores

    def _best_relations(
        self, triple: NDArray[np.int64], count: int, excluded: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        relations = np.setdiff1d(np.arange(self.relation_count), excluded)
        triples = np.tile(triple, (len(relations), 1))
        triples[:, 1] = relations
        scores = np.concatenate([np.empty(0, np.float32), *self._scores(triples)])
        order = np.lexsort((relations, -scores))[:count]
        return relations[order], scores[order]

    def _answers_in_graph(self, triple: NDArray[np.int64], asked: int) -> NDArray[np.int64]:
        graph = self.graph
        given = [column for column in range(3) if column != asked]
        found = [
            part[(part[:, given] == triple[given]).all(axis=1), asked]
            for part in (graph.train, graph.valid, graph.test)
        ]
        return np.unique(np.concatenate(found))

    def _names(self, kind: str) -> Names:
        return self._all_names[kind]

    @cached_property
    def _all_names(self) -> dict[str, Names]:
        counts = {"entity": self.entity_count, "relation": self.relation_count}
        found = self._names_of_run
        path = self._data or self.config.data.path
        if None in found.values() and path is not None and path.exists():
            graph = self.graph
            named = {"entity": graph.entities, "relation": graph.relations}
            return {kind: Names(kind, counts[kind], named[kind]) for kind in counts}
        return {kind: names or Names(kind, counts[kind], None) for kind, names in found.items()}

    @cached_property
    def _names_of_run(self) -> dict[str, Names | None]:
        """The names of the run by kind; None where it has none."""
        counts = {"entity": self.entity_count, "relation": self.relation_count}
        return {
            kind: Names.of_run(kind, count, self.saved.file, self.saved.out)
            for kind, count in counts.items()
        }

    def _numbers(self, raw: Any) -> NDArray[np.int64]:
        """Triples `[n, 3]` as numbers."""
        if isinstance(raw, str | Path):
            file = self._file(Path(raw), None)
            return self._triples(self._columns(file), str(file))
        if isinstance(raw, torch.Tensor):
            raw = raw.numpy()
        if isinstance(raw, np.ndarray):
            return self._triples(_table_of(raw, "the array"), "the array")
        if len(raw) == 3 and all(isinstance(value, str | int) for value in raw):
            raw = [raw]
        columns: Sequence[Any] = list(zip(*raw, strict=True)) or [[], [], []]
        if len(columns) != 3:
            raise InvalidInput(
                f"triples must have head, relation and tail, got {len(columns)} values each"
            )
        table = pa.table(
            {name: pa.array(list(column)) for name, column in zip(COLUMNS, columns, strict=True)}
        )
        return self._triples(table, "triples")

    def _file(self, data: Path, part: str | None) -> Path:
        """The file of a part of a folder; the file itself, of which no part can be chosen."""
        if data.is_dir():
            return data / f"{self.chosen_part(part, 'test')}.tsv"
        if part is not None:
            raise ConfigError(
                f"--part {part} chooses a file of a folder, but {data} is a file: drop --part, or pass the folder"
            )
        return data

    def _columns(self, file: Path) -> Any:
        """The triples of a file as a table."""
        if file.suffix == ".npy":
            return _table_of(_npy(file), str(file))
        if file.suffix == ".parquet":
            try:
                table = pq.read_table(file)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"{file} is not a readable Parquet file: {error}") from None
            lacking = [name for name in COLUMNS if name not in table.column_names]
            if lacking:
                raise DataError(
                    f"{file} has no column {lacking[0]!r}: it needs head, relation and tail, and has {table.column_names}"
                )
            return table.select(list(COLUMNS))
        return read_triples(file)

    def _triples(self, table: Any, where: str) -> NDArray[np.int64]:
        numbers = [
            self._names(kind).numbers(table[name], f"{where}, {name}")
            for name, kind in zip(COLUMNS, _KINDS, strict=True)
        ]
        return np.stack(numbers, axis=1)

    def _known(self, table: Any) -> NDArray[np.int64]:
        """The triples of a table whose names the run knows."""
        numbers = [
            self._names(kind).known(table[name]) for name, kind in zip(COLUMNS, _KINDS, strict=True)
        ]
        triples = np.stack(numbers, axis=1)
        return triples[(triples >= 0).all(axis=1)]


def _npy(file: Path) -> NDArray[Any]:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist; give a file of triples") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} is not a readable .npy file: {error}") from None


def _table_of(array: NDArray[Any], where: str) -> Any:
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "iu":
        raise DataError(
            f"{where} is {array.dtype} {list(array.shape)}; triples must be integers [n, 3]: head, relation, tail"
        )
    return pa.table(
        {name: pa.array(np.ascontiguousarray(array[:, at])) for at, name in enumerate(COLUMNS)}
    )
