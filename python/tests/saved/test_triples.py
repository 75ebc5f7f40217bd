"""A trained knowledge graph is used: scores of triples, filtered ranking and queries.

What could break: scores differ from those by which the trainer ranks; a query leaves out or orders answers wrongly; names
are those of other numbers.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rowmill
from python.tests.kge.rings import ENTITIES, RELATIONS, graph_config
from python.tests.saved.conftest import trained
from python.tests.saved.scores import triple_scores
from rowmill.cli import main
from rowmill.errors import DataError, InvalidInput, StoreCorrupt
from rowmill.kge import LoadedTriples
from rowmill.kge.task import GraphTask

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.saved.conftest import Trained


def loaded(run: Path, **options: Any) -> LoadedTriples:
    found = rowmill.load(run, **options)
    assert isinstance(found, LoadedTriples)
    return found


@pytest.mark.parametrize(
    ("kind", "reciprocal", "threads"),
    [("complex", True, 16), ("distmult", False, 1), ("transe", True, 1), ("rotate", False, 16)],
)
def test_scores_and_figures_are_those_of_the_trainer(
    kind: str,
    reciprocal: bool,
    threads: int,
    ring: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {"model__kind": kind, "kge__reciprocal": reciprocal, "train__threads": threads}
    run = trained(graph_config(tmp_path / "run", ring, train__epochs=1, **flags))
    expected = triple_scores(run.config, run.run, monkeypatch)
    out = tmp_path / "scores.parquet"
    assert main(["predict", str(run.run), "--data", str(ring / "test.tsv"), "--out", str(out)]) == 0
    scores = pq.read_table(out)
    assert np.array_equal(scores["score"].to_numpy(), expected)
    assert scores.column_names == ["head", "relation", "tail", "score"]
    lines = ["\t".join(row[:3]) for row in zip(*scores.to_pydict().values(), strict=True)]
    assert lines == (ring / "test.tsv").read_text().splitlines()
    capsys.readouterr()
    for data in (ring, ring / "test.tsv"):
        assert main(["evaluate", str(run.run), "--data", str(data), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == run.report["test"]
    # All answers to queries, in order and to the bit.
    with loaded(run.run) as graph:
        for number, name in enumerate(("e7", "e8")):
            given = [(name, "r1", f"e{n}") for n in range(ENTITIES)]
            answers = graph.query(name, "r1", None, top=ENTITIES)
            of_names = dict(zip((t for *_, t in given), graph.predict(given).tolist(), strict=True))
            assert {answer.name: answer.score for answer in answers} == of_names, number
            order = [(-answer.score, answer.number) for answer in answers]
            assert order == sorted(order)
        triple = ("e3", "r2", "e6")
        of_relations = graph.query("e3", None, "e6")
        assert {answer.name for answer in of_relations} == {f"r{k}" for k in range(RELATIONS)}
        score = next(answer.score for answer in of_relations if answer.name == "r2")
        assert score == float(graph.predict([triple])[0])
        heads = graph.query(None, "r2", "e6", top=ENTITIES)
        assert len({answer.number for answer in heads}) == ENTITIES
        if not reciprocal and graph.model.dot_scores:
            # The head query scores the same triples, up to rounding.
            found = {answer.name: answer.score for answer in heads}
            assert found["e3"] == pytest.approx(score, abs=1e-5)


def test_queries_by_name_leave_out_known_answers(
    triples: Trained, ring: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answers(*arguments: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["kge", "query", str(triples.run), *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    known = {
        tuple(line.split("\t")) for p in ring.glob("*.tsv") for line in p.read_text().split("\n")
    }
    every = answers("e5", "r1", "?", "--top", str(ENTITIES))
    rest = answers("e5", "r1", "?", "--top", str(ENTITIES), "--filter")
    assert [a for a in every if ("e5", "r1", a["name"]) not in known] == rest
    assert len(rest) == len(every) - 1
    assert answers("e5", "r1", "?", "--top", "3") == every[:3]
    number = next(
        a["number"] for a in answers("?", "r0", "e2", "--top", "200") if a["name"] == "e5"
    )
    assert answers(f"#{number}", "#1", "?", "--top", "3")  # Numbers in place of names.
    assert answers(f"#{number}", "r1", "?") == answers("e5", "r1", "?")
    assert len(answers("?", "r0", "e2", "--filter", "--top", "200")) == ENTITIES - 1
    assert {a["name"] for a in answers("e5", "?", "e7", "--filter")} == {"r0", "r2", "r3"}
    assert main(["kge", "query", str(triples.run), "e5", "r1", "?", "--top", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[::2] == ["1", every[0]["name"]]
    assert second.split()[::2] == ["2", every[1]["name"]]


def test_triples_as_numbers_give_the_same_scores(
    triples: Trained, ring: Path, tmp_path: Path
) -> None:
    with loaded(triples.run) as graph:
        by_name = graph.predict(ring / "test.tsv")
        numbers = np.stack(
            [column.numpy() for column in graph.transform(ring / "test.tsv")], axis=1
        )
        assert np.array_equal(graph.predict(numbers), by_name)
        assert np.array_equal(graph.model(*graph.transform(numbers)).shape, by_name.shape)
        first = (ring / "test.tsv").read_text().split("\n")[0].split("\t")
        assert graph.predict(tuple(first)).tolist() == by_name[:1].tolist()
    np.save(tmp_path / "test.npy", numbers)
    names = ("head", "relation", "tail")
    pq.write_table(
        pa.table({name: numbers[:, at].copy() for at, name in enumerate(names)}),
        tmp_path / "test.parquet",
    )
    for data in ("test.npy", "test.parquet"):
        out = tmp_path / f"{data}.scores.npy"
        command = ["predict", str(triples.run), "--data", str(tmp_path / data), "--out", str(out)]
        assert main(command) == 0
        assert np.array_equal(np.load(out), by_name.numpy())


def test_a_version_of_a_graph_is_read(
    triples: Trained, ring: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = rowmill.versions(triples.run / "store")[0]
    copy = triples.copy(tmp_path / "copy")
    assert main(["rollback", str(copy), version["name"]]) == 0
    expected = triples.tested_by_trainer(copy)
    capsys.readouterr()
    command = ["evaluate", str(triples.run), "--data", str(ring), "--version", version["name"]]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected != triples.report["test"]


def test_the_checkpoint_knows_the_names(triples: Trained, tmp_path: Path) -> None:
    url = (tmp_path / "url").as_uri()
    assert main(["push", str(triples.run / "store"), url]) == 0
    assert main(["restore", url, str(tmp_path / "restored")]) == 0
    with loaded(triples.run) as graph:
        named = graph.query("e5", "r1", None)
    restored = tmp_path / "restored"
    for rows in (shutil.copytree(triples.run / "store", tmp_path / "store"), restored):
        with loaded(rows, data=tmp_path / "gone") as graph:
            assert graph.query("e5", "r1", None) == named
    version = rowmill.versions(triples.run / "store")[0]["name"]
    with loaded(tmp_path / "store", data=tmp_path / "gone", version=version) as graph:
        assert graph.query("e5", "r1", None)[0].name is not None
    (file,) = (f for f in restored.glob("run-*.txt") if f.read_text().startswith("r"))
    file.write_text(file.read_text().replace("r1", "r9"))
    with loaded(restored) as graph, pytest.raises(StoreCorrupt, match=f"{file.name} is damaged"):
        graph.query("e5", "r1", None)
    file.unlink()
    with loaded(restored) as graph, pytest.raises(StoreCorrupt, match=f"{file.name} is missing"):
        graph.query("e5", "r1", None)


def test_without_names_or_graph_numbers_are_enough(
    triples: Trained,
    ring: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Checkpoints of older builds have no names.
    monkeypatch.setattr(GraphTask, "described", lambda _: {})
    older = trained(graph_config(tmp_path / "older", ring, train__epochs=1))
    with loaded(older.run) as graph:
        assert graph.query("e5", "r1", None)[0].name is not None
    store = shutil.copytree(older.run / "store", tmp_path / "store")
    with loaded(store) as graph:  # The names come from the graph.
        named = graph.query("e5", "r1", None)
    moved = shutil.copytree(ring, tmp_path / "moved")
    gone = tmp_path / "gone"
    # The settings of a run name the graph: a copy of the run with settings of a graph that is gone.
    with loaded(store, data=moved) as graph:
        assert graph.query("e5", "r1", None, filtered=True)
    with loaded(store, data=gone) as graph:
        numbers = (int(graph.query(0, 0, None)[0].number), 1)
        assert all(answer.name is None for answer in graph.query(*numbers, None))
        with pytest.raises(DataError, match=r"got 'e5'\. The run has no names: give numbers"):
            graph.query("e5", "r1", None)
        with pytest.raises(DataError, match="gone, does not exist: restore it"):
            graph.query(0, 0, None, filtered=True)
    assert named[0].name is not None
    (moved / "train.tsv").write_text("a\tb\tc\n")
    (moved / "valid.tsv").write_text("a\tb\tc\n")
    (moved / "test.tsv").write_text("a\tb\tc\n")
    command = ["kge", "query", str(triples.run), "e5", "r1", "?", "--filter", "--graph", str(moved)]
    assert main(command) == 2
    assert "is not the graph that" in capsys.readouterr().err


def test_errors_of_graphs_name_the_value_and_the_nearest_names(
    triples: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.tsv").write_text("e1\tr1\te2\ne1\tr1\tE149\n")
    pq.write_table(pa.table({"head": ["e1"], "tail": ["e2"]}), tmp_path / "lacking.parquet")
    np.save(tmp_path / "pairs.npy", np.zeros((3, 2), np.int64))
    np.save(tmp_path / "far.npy", np.array([[1, 1, 999]]))
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.int64))
    run, out = str(triples.run), ["--out", str(tmp_path / "s")]
    bad, pairs = str(tmp_path / "bad.tsv"), str(tmp_path / "pairs.npy")
    for arguments, expected in [
        (["kge", "query", run, "e1x", "r1", "?"], "head: entity 'e1x' is not one of the 150"),
        (["kge", "query", run, "E12", "r1", "?"], "did you mean 'e12'"),
        (["kge", "query", run, "e1", "r9", "?"], "relation: relation 'r9' is not one of the 4"),
        (["kge", "query", run, "#900", "r1", "?"], "head: entity '#900' is not one of the 150"),
        (["kge", "query", run, "e1", "?", "?"], "exactly one of head, relation and tail"),
        (["kge", "query", run, "e1", "r1", "e2"], "exactly one of head, relation and tail"),
        (["kge", "query", run, "e1", "r1", "?", "--top", "0"], "top must be"),
        (
            ["predict", run, "--data", bad, *out],
            "bad.tsv, tail, row 2: entity 'E149' is not one of",
        ),
        (["predict", run, "--data", bad, *out], "did you mean 'e149'"),
        (["predict", run, "--data", bad, "--part", "test", *out], "is a file: drop --part"),
        (["predict", run, "--data", pairs, *out], "pairs.npy is int64 [3, 2]"),
        (["predict", run, "--data", str(tmp_path / "far.npy"), *out], "got 999"),
        (["predict", run, "--data", str(tmp_path / "none.npy"), *out], "has no examples"),
        (
            ["predict", run, "--data", str(tmp_path / "lacking.parquet"), *out],
            "no column 'relation'",
        ),
        (["predict", run, "--data", str(tmp_path / "no.tsv"), *out], "no.tsv does not exist"),
        (["evaluate", run, "--data", str(tmp_path), "--part", "all"], "must be one of test, valid"),
    ]:
        capsys.readouterr()
        assert main(arguments) == 2, arguments
        assert expected in capsys.readouterr().err, arguments
    assert not (tmp_path / "s").exists()
    with loaded(triples.run) as graph, pytest.raises(InvalidInput, match="got 2 values each"):
        graph.predict([("e1", "r1")])


def test_vectors_of_a_graph_have_names(triples: Trained, tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    assert main(["vectors", str(triples.run), "--out", str(out)]) == 0
    entities = pq.read_table(out / "entities.parquet")
    assert sorted(entities["id"].to_pylist()) == list(range(ENTITIES))
    names = (triples.run / "entities.txt").read_text().splitlines()
    assert entities["name"].to_pylist() == [names[number] for number in entities["id"].to_pylist()]
    relations = pq.read_table(out / "relations.parquet").to_pydict()
    # Reciprocal relations have no name.
    of_numbers = dict(zip(relations["id"], relations["name"], strict=True))
    assert [of_numbers[n] for n in range(RELATIONS, 2 * RELATIONS)] == [None] * RELATIONS
    assert {of_numbers[n] for n in range(RELATIONS)} == {f"r{k}" for k in range(RELATIONS)}
