"""`--continue` of a knowledge graph: new triples, entities and relations, with what was learned.

What could break: a known entity gets another number, the rows of reciprocal relations belong to other relations after new ones
came, or a kill before the first checkpoint of new triples changes what follows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import rowmill
from python.tests.train.cut_off import cut_off
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import left
from python.tests.train.test_exactly_once import differences
from rowmill.cli import main
from rowmill.kge.loaded_triples import LoadedTriples
from rowmill.kge.task import GraphTask

if TYPE_CHECKING:
    from collections.abc import Callable

ENTITIES, RELATIONS = 60, 3
FLAGS = ("--task", "kge", "--dim", "8", "--memory", "64MiB", "--threads", "1", "--batch", "30")
CONFIG = "[kge]\nnegatives = 16\nreciprocal = {}\n[rows]\nlr = 0.3\ninitial_width = 0.3\n"


def write(folder: Path, first: int, entities: int, relations: range) -> str:
    """Triples of a ring with chords: relation k leads from entity n to n + k + 1."""
    folder.mkdir()
    triples = [
        f"e{head}\tr{chord}\te{(head + chord + 1) % entities}\n"
        for head in range(first, entities)
        for chord in relations
    ]
    np.random.default_rng(3).shuffle(triples)
    cut = len(triples) // 10
    for part, lines in (("test", triples[:cut]), ("valid", triples[cut : 2 * cut])):
        (folder / f"{part}.tsv").write_text("".join(lines))
    # Every entity and relation is in train.tsv.
    (folder / "train.tsv").write_text("".join(triples))
    return str(folder)


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    write(Path("monday"), 0, ENTITIES, range(RELATIONS))
    # Ten further entities, two further relations, and not all of those known.
    write(Path("tuesday"), 20, ENTITIES + 10, range(1, RELATIONS + 2))
    write(Path("wednesday"), 0, ENTITIES, range(2))

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(list(arguments))
        printed = capsys.readouterr()
        assert ended == code, printed.err + printed.out
        return printed.out + printed.err

    return run


def begin(command: Callable[..., str], *, reciprocal: bool = True, out: str = "run") -> None:
    Path("config.toml").write_text(CONFIG.format(str(reciprocal).lower()))
    command("train", "--data", "monday", "--out", out, "--config", "config.toml", *FLAGS)


def vectors(run: str = "run") -> dict[str, dict[str, list[float]]]:
    """The rows of a run by the names of entities and relations; a reciprocal is named by its relation and a minus."""
    found: dict[str, dict[str, list[float]]] = {}
    with rowmill.load(run) as loaded:
        assert isinstance(loaded, LoadedTriples)
        for table, count in (
            ("entities", loaded.entity_count),
            ("relations", loaded.relation_count),
        ):
            names = Path(run, f"{table}.txt").read_text().split()
            rows = loaded.tables[table].get(np.arange(loaded.tables[table].num_rows or 0)).tolist()
            labels = [*names[:count], *(f"-{name}" for name in names[:count])]
            found[table] = dict(zip(labels, rows, strict=False))
    return found


@pytest.mark.parametrize("reciprocal", [True, False])
def test_names_keep_their_rows_when_others_come(
    command: Callable[..., str], *, reciprocal: bool
) -> None:
    begin(command, reciprocal=reciprocal)
    before, names = vectors(), Path("run/entities.txt").read_text()
    shutil.rmtree("monday")
    said = command("train", "--continue", "run", "--data", "tuesday", "--row-lr", "0")
    assert "of part 2, tuesday" in said
    after = vectors()
    for table in ("entities", "relations"):
        assert {name: after[table][name] for name in before[table]} == before[table], table
    assert len(after["entities"]) == ENTITIES + 10
    assert len(after["relations"]) == (RELATIONS + 2) * (2 if reciprocal else 1)
    assert Path("run/entities.txt").read_text().startswith(names)
    check_whole(Path("run/store"))
    # A known relation and a new one can be asked.
    command("kge", "query", "run", "e1", "r0", "?")
    command("kge", "query", "run", "e65", "r4", "?", "--filter")
    command("predict", "run", "--data", "tuesday/test.tsv", "--out", "scores.parquet")
    command("evaluate", "run", "--data", "tuesday")
    report = json.loads(Path("run/report.json").read_text())
    assert [part["data"] for part in report["parts"]] == ["monday"]
    assert report["run"]["entities"] == ENTITIES + 10


def test_new_triples_are_learned_and_known_data_is_not_repeated(
    command: Callable[..., str],
) -> None:
    begin(command)
    more = ("--epochs", "25")
    command("train", "--continue", "run", "--data", "tuesday", *more)
    assert json.loads(Path("run/report.json").read_text())["test"]["mrr"] > 0.3
    before = contents(Path("run"))
    assert "Nothing to do: the run is complete" in command(
        "train", "--continue", "run", "--data", "tuesday", *more
    )
    says = command("train", "--continue", "run", "--data", "monday", *more)
    assert "Nothing to do: monday is part 1" in says
    assert contents(Path("run")) == before
    command("train", "--continue", "run", "--data", "wednesday")
    assert len(vectors()["entities"]) == ENTITIES + 10


def test_kills_change_no_bit(command: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    begin(command)
    shutil.copytree("run", "killed")
    tuesday = ("--data", "tuesday", "--epochs", "2", "--checkpoint-every", "3")
    for name in ("run", "killed"):
        steps = () if name == "run" else (0, 2, 4, 9)
        for step in steps:
            with cut_off(at(name) + step, monkeypatch):
                command("train", "--continue", name, *tuesday)
            # It can be used meanwhile, by names.
            command("kge", "query", name, "e1", "r0", "?")
        command("train", "--continue", name, *tuesday)
    assert differences(left(Path("run")), left(Path("killed"))) == []
    check_whole(Path("killed/store"))


def test_rates_may_change_between_two_parts(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(command)
    shutil.copytree("run", "other")
    tuesday = ("--data", "tuesday", "--checkpoint-every", "2")
    Path("changed.toml").write_text("[kge]\nentity_dropout = 0.3\n")
    command("train", "--continue", "run", *tuesday)
    with cut_off(at("other") + 4, monkeypatch):
        command("train", "--continue", "other", *tuesday, "--config", "changed.toml")
    # Within a part it is fixed, and the part goes on with it.
    before = contents(Path("other"))
    Path("again.toml").write_text("[kge]\nentity_dropout = 0.4\n")
    says = command("train", "--continue", "other", *tuesday, "--config", "again.toml", code=2)
    assert "kge.entity_dropout was 0.3 and is 0.4, and tuesday is already a part" in says
    assert contents(Path("other")) == before
    command("train", "--continue", "other", *tuesday)
    assert vectors("other") != vectors()
    Path("again.toml").write_text("[kge]\nobjective = 'kvsall'\n")
    says = command(
        "train", "--continue", "run", "--data", "wednesday", "--config", "again.toml", code=2
    )
    assert "kge.objective was 'negatives' and is 'kvsall', which is fixed for all data" in says
    check_whole(Path("run/store"))


def at(run: str) -> int:
    """The step at which the first part of a run ended."""
    with rowmill.load(run) as loaded:
        state = loaded.saved.state
        return state.parts[0].steps if state.parts else state.step


def test_wrong_commands_change_nothing(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(command)
    before = contents(Path("run"))

    def refused(*given: str) -> str:
        said = command("train", "--continue", "run", *given, code=2)
        assert contents(Path("run")) == before
        check_whole(Path("run/store"))
        return said

    assert "model.dim was 8 and is 4" in refused("--data", "tuesday", "--dim", "4")
    assert "is not a click model" in refused("--data", "tuesday", "--task", "ctr")
    step = at("run")
    with cut_off(step + 4, monkeypatch):
        command("train", "--continue", "run", "--data", "tuesday", "--checkpoint-every", "2")
    before = contents(Path("run"))
    assert "has not finished part 2 of its data, tuesday" in refused("--data", "wednesday")
    command(
        "train", "--data", "tuesday", "--out", "run", "--resume", "--config", "config.toml", *FLAGS
    )


def test_a_checkpoint_of_an_older_build_needs_the_names_in_its_folder(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_files(_: GraphTask) -> dict[str, Any]:
        return {}

    with monkeypatch.context() as older:
        older.setattr(GraphTask, "described", no_files)
        begin(command)
    names = Path("run/relations.txt")
    text = names.read_text()
    names.write_text("r0\n")
    before = contents(Path("run"))
    says = command("train", "--continue", "run", "--data", "tuesday", code=2)
    assert "relations.txt is missing or has fewer than the 3 names" in says
    assert contents(Path("run")) == before
    names.write_text(text)
    command("train", "--continue", "run", "--data", "tuesday")
    assert Path("run/relations.txt").read_text().startswith(text)


def test_the_names_of_the_checkpoint_count(command: Callable[..., str]) -> None:
    """Of a restored run, of a run altered from its rows alone, and of one whose text files were changed."""
    begin(command)
    url = Path("url").absolute().as_uri()
    command("push", "run/store", url)
    command("restore", url, "restored/store")
    shutil.copytree("run/store", "rows")
    command("alter", "rows", "--out", "altered", "--eps", "1e-6")
    shutil.copytree("run", "changed")
    for name in ("entities.txt", "relations.txt"):
        Path("changed", name).write_text("r9\n" * 90)
        assert not Path("restored", name).exists()
    found: list[dict[str, dict[str, list[float]]]] = []
    for run in ("run", "restored", "altered", "changed"):
        command("train", "--continue", run, "--data", "tuesday", "--row-lr", "0")
        found.append(vectors(run))
        check_whole(Path(run, "store"))
    assert found[1:] == found[:1] * 3


def test_a_run_with_another_dim_is_continued(command: Callable[..., str]) -> None:
    begin(command)
    said = command("alter", "run", "--out", "wider", "--dim", "16")
    assert "to continue training: rowmill train --continue wider --data DATA" in said
    before = vectors("wider")["relations"]
    command("train", "--continue", "wider", "--data", "tuesday", "--row-lr", "0")
    after = vectors("wider")["relations"]
    assert {name: after[name] for name in before} == before
    assert len(after) == 2 * (RELATIONS + 2)
    check_whole(Path("wider/store"))
