"""`--continue` of a graph neural network with a graph that has grown.

What could break: rows of known nodes change, features of the new graph are not read, the best model of the old graph is kept because
its metrics were better, or a kill before the first checkpoint changes what follows.
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
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, CLASSES, DIM = 400, 4, 12
FLAGS = ("--task", "gnn", "--memory", "64MiB", "--threads", "1", "--batch", "8", "--epochs", "2")
CONFIG = "[gnn]\nhidden = 8\nfanouts = [4, 3]\nisolated = 'keep'\nrows = '{}'\nchoose = '{}'\ntrain_per_class = 10\nvalid_per_class = 10\n"


def grown(file: str, nodes: int, change: float = 0.0) -> str:
    """The first nodes of the graph, with their edges; `change` is added to the features."""
    whole: Any = np.load("whole.npz")
    edges = whole["edges"]
    found = {
        "edges": edges[(edges < nodes).all(axis=1)],
        "node_labels": whole["node_labels"][:nodes],
        "node_features": whole["node_features"][:nodes] + np.float32(change),
    }
    np.savez(file, **found)
    return file


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    make_nodes(Path("whole.npz"), NodesConfig(nodes=NODES, classes=CLASSES, features=DIM))
    grown("monday.npz", 300)
    grown("tuesday.npz", NODES, 1.0)

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(list(arguments))
        printed = capsys.readouterr()
        assert ended == code, printed.err + printed.out
        return printed.out + printed.err

    return run


def begin(command: Callable[..., str], rows: str = "learned", choose: str = "last") -> None:
    Path("config.toml").write_text(CONFIG.format(rows, choose))
    command("train", "--data", "monday.npz", "--out", "run", "--config", "config.toml", *FLAGS)


def table(name: str) -> Any:
    with rowmill.load("run") as loaded:
        return loaded.tables[name].get(np.arange(loaded.tables[name].num_rows or 0))


def report() -> dict[str, Any]:
    return json.loads(Path("run/report.json").read_text())


def test_known_nodes_keep_their_rows_and_new_ones_are_learned(command: Callable[..., str]) -> None:
    begin(command)
    before = table("nodes")
    shutil.copytree("run", "other")
    Path("monday.npz").rename("old.npz")
    said = command("train", "--continue", "run", "--data", "tuesday.npz", "--row-lr", "0")
    assert "of part 2, tuesday.npz" in said
    assert "New: 300 nodes before, 400 now" in said
    assert np.array_equal(table("nodes")[:300], before)
    shutil.rmtree("run")
    Path("other").rename("run")
    command("train", "--continue", "run", "--data", "tuesday.npz")
    after = table("nodes")
    assert after.shape == (NODES, before.shape[1])
    assert (after[:300] != before).any()
    assert report()["run"]["nodes"] == NODES
    check_whole(Path("run/store"))
    command("predict", "run", "--data", "tuesday.npz", "--out", "scores.parquet")
    kept = contents(Path("run"))
    assert "Nothing to do" in command("train", "--continue", "run", "--data", "tuesday.npz")
    says = command("train", "--continue", "run", "--data", "old.npz")
    assert "Nothing to do: old.npz is part 1" in says
    assert contents(Path("run")) == kept


def test_features_are_those_of_the_new_graph_and_the_best_model_is_chosen_anew(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(command, "features", "best")
    before = table("features")
    tuesday = ("train", "--continue", "run", "--data", "tuesday.npz", "--dense-lr", "0.05")
    command(*tuesday, "--epochs", "3")
    after = table("features")
    assert not np.allclose(after[:300], before)
    assert len(after) == NODES
    with rowmill.load("run") as loaded:
        best = loaded.saved.weights["best_figure"].item()
    of_part = [point for point in report()["curve"] if "valid_accuracy" in point][2:]
    assert best == pytest.approx(max(point["valid_accuracy"] for point in of_part))
    check_whole(Path("run/store"))


@pytest.mark.parametrize("rows", ["learned", "features"])
def test_kills_change_no_bit(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    begin(command, rows, "last")
    shutil.copytree("run", "killed")
    first = report()["run"]["steps"]
    tuesday = ("--data", "tuesday.npz", "--checkpoint-every", "3")
    for name, steps in (("run", ()), ("killed", (0, 2, 4, 9))):
        for step in steps:
            with cut_off(first + step, monkeypatch):
                command("train", "--continue", name, *tuesday)
        command("train", "--continue", name, *tuesday)
    assert differences(left(Path("run")), left(Path("killed"))) == []
    check_whole(Path("killed/store"))


def test_weight_decay_may_change_between_two_parts(command: Callable[..., str]) -> None:
    begin(command)
    shutil.copytree("run", "other")
    tuesday = ("train", "--continue", "run", "--data", "tuesday.npz")
    command(*tuesday)
    large = weight()
    shutil.rmtree("run")
    Path("other").rename("run")
    Path("decay.toml").write_text("[gnn]\nweight_decay = 50.0\n")
    command(*tuesday, "--config", "decay.toml")
    assert weight() < 0.9 * large
    check_whole(Path("run/store"))


def weight() -> float:
    """Sum of the squares of the dense weights of the run."""
    with rowmill.load("run") as loaded:
        network = {
            name: value
            for name, value in loaded.saved.weights.items()
            if name.startswith("network.")
        }
        assert network
        return sum(float(value.square().sum()) for value in network.values())


def test_wrong_graphs_change_nothing(command: Callable[..., str]) -> None:
    begin(command, "features")
    grown("fewer.npz", 250)
    whole: Any = np.load("tuesday.npz")
    found = {name: whole[name] for name in whole.files}
    labels = found["node_labels"].copy()
    labels[np.flatnonzero(labels == 0)[::2]] = CLASSES
    classes = {**found, "node_labels": labels}
    np.savez("classes.npz", **classes)
    np.savez("wide.npz", **{**found, "node_features": found["node_features"].repeat(2, axis=1)})
    before = contents(Path("run"))
    for file, says in {
        "fewer.npz": "cannot continue: fewer.npz has 250 nodes, but the run has 300",
        "classes.npz": "classes was 4 and is 5, which is fixed for all data of a run",
        "wide.npz": "features was 12 and is 24",
    }.items():
        assert says in command("train", "--continue", "run", "--data", file, code=2)
        assert contents(Path("run")) == before
    check_whole(Path("run/store"))
