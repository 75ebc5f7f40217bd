"""A trained graph neural network is used: class scores and metrics of nodes.

What could break: scores are of another model than the trainer tests, or of other samples; the graph is missing or another.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import rowmill
from python.tests.saved.conftest import node_config, trained
from python.tests.saved.scores import node_scores
from rowmill.cli import main
from rowmill.errors import DataError, InvalidInput
from rowmill.gnn import LoadedNodes
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.saved.conftest import Trained


def loaded(run: Path, **options: Any) -> LoadedNodes:
    found = rowmill.load(run, **options)
    assert isinstance(found, LoadedNodes)
    return found


def check_scores(run: Trained, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = node_scores(run.config, run.run, monkeypatch)
    command = ["predict", str(run.run), "--data", str(run.data)]
    of_test = ["--part", "test", "--out", str(folder / "test.parquet")]
    assert main([*command, *of_test]) == 0
    table = pq.read_table(folder / "test.parquet")
    scores = np.array(table["scores"].to_pylist(), np.float32)
    assert np.array_equal(scores, expected)
    assert table["predicted"].to_pylist() == expected.argmax(1).tolist()
    assert main([*command, "--out", str(folder / "all.npy")]) == 0
    assert np.load(folder / "all.npy").shape == (900, 3)


def test_scores_and_figures_are_those_of_the_trainer(
    nodes: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check_scores(nodes, tmp_path, monkeypatch)
    capsys.readouterr()
    assert main(["evaluate", str(nodes.run), "--data", str(nodes.data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == nodes.report["test"]
    best = max(point["valid_accuracy"] for point in nodes.report["curve"] if "valid_loss" in point)
    command = ["evaluate", str(nodes.run), "--data", str(nodes.data), "--part", "valid", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == best
    assert main(["evaluate", str(nodes.run), "--data", str(nodes.data)]) == 0
    assert (
        capsys.readouterr().out == f"accuracy            {nodes.report['test']['accuracy']:.4f}\n"
    )


def test_learned_rows_and_the_last_model(
    node_graph: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {"gnn__rows": "learned", "gnn__choose": "last", "model__dim": 6, "train__threads": 16}
    config = node_config(tmp_path / "run", node_graph, train__epochs=1, **flags)
    run = trained(config)
    check_scores(run, tmp_path, monkeypatch)
    capsys.readouterr()
    assert main(["evaluate", str(run.run), "--data", str(run.data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == run.report["test"]
    # Only nodes that a training step read have a row.
    assert main(["vectors", str(run.run), "--out", str(tmp_path / "vectors")]) == 0
    ids = np.load(tmp_path / "vectors" / "nodes.ids.npy")
    with loaded(run.run) as model:
        table = model.tables["nodes"]
        assert 0 < len(ids) == len(table) < 900
        assert bool(np.all(table.contains(ids)))
        assert np.array_equal(np.load(tmp_path / "vectors" / "nodes.npy"), table.get(ids))


def test_load_gives_model_transform_and_tables(nodes: Trained, tmp_path: Path) -> None:
    with loaded(nodes.run) as model:
        asked = torch.tensor([5, 3, 700])
        with torch.no_grad(), model.threads():
            scores = model.model(*model.transform(asked))
        assert torch.equal(scores, model.predict([5, 3, 700]))
        assert scores.shape == (3, 3)
        assert model.predict([]).shape == (0, 3)
        for wrong, message in [
            ([900], r"must be in \[0, 900\), got 900"),
            ([1, 1], "must be distinct"),
            ([0.5], "must be integers"),
        ]:
            with pytest.raises(InvalidInput, match=message):
                model.predict(wrong)
    gone = tmp_path / "gone.npz"
    with loaded(nodes.run, data=gone) as model:
        assert len(model.tables["features"]) == 900  # Tables need no graph.
        with pytest.raises(
            DataError, match=r"gone\.npz, does not exist, and scores of nodes need it"
        ):
            _ = model.model


def test_a_version_before_the_first_validation_has_the_model_of_its_step(nodes: Trained) -> None:
    versions = rowmill.versions(nodes.run / "store")
    first = versions[0]
    with loaded(nodes.run, version=first["name"]) as early, loaded(nodes.run) as late:
        assert early.step == first["step"]
        weights = early.saved.weights
        assert all(
            torch.equal(value, weights[f"network.{name}"])
            for name, value in early.model.state_dict().items()
        )
        weights = late.saved.weights
        assert all(
            torch.equal(value, weights[f"best.{name}"])
            for name, value in late.model.state_dict().items()
        )


def test_another_graph_is_refused(
    nodes: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_nodes(
        tmp_path / "other.npz", NodesConfig(nodes=900, classes=3, features=12, seed=1)
    )
    for arguments, expected in [
        (["evaluate", str(nodes.run), "--data", str(other)], "is not the graph that"),
        (["evaluate", str(nodes.run), "--data", str(tmp_path / "no.npz")], "does not exist"),
        (
            ["evaluate", str(nodes.run), "--data", str(nodes.data), "--part", "x"],
            "all, train, valid",
        ),
        (["kge", "query", str(nodes.run), "a", "b", "?"], "train.task = 'gnn': only a knowledge"),
        (["export", str(nodes.run), "--out", str(tmp_path / "b")], "only click models"),
    ]:
        capsys.readouterr()
        assert main(arguments) == 2, arguments
        assert expected in capsys.readouterr().err, arguments
