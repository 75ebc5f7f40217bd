"""`rowmill train --task gnn` on several ranks gives the steps of one process, and resumes from checkpoints of all ranks.

Steps are compared by their losses, and results by dense weights, rows and the metrics of the test part. The last batch of an
epoch has two nodes, so on three ranks and more some rank has none of it. With dropout, runs of ranks are compared with a run
of one rank, because one process draws it by position.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from python.tests.train.ranked import kill_second, printed, run_ranks, start
from python.tests.train.runs import ended, fork
from rowmill.cli import main
from rowmill.config import ConfigError, load_config
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.ranked_task import check_ranked_nodes
from rowmill.gnn.settings import NodesConfig
from rowmill.saved.saved_run import SavedRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.slow

NODES = 400
COMMON = """
[train]
task = "gnn"
threads = 1
log_every = 1
# 80 nodes to train, in batches of 39, 39 and 2: 201 steps.
batch = 39
epochs = 67
dense_lr = 0.01

[store]
memory = "64MiB"

[rows]
lr = 0.05
initial_width = 0.3
"""
WAYS = {
    "features": """
[model]
kind = "graphsage"
[gnn]
hidden = 8
fanouts = [4, 3]
test_batch = 90
normalize = true
norm = true
dropout = 0.0
validate_every = 30
""",
    "learned": """
[model]
kind = "graphsage"
dim = 8
[gnn]
rows = "learned"
hidden = 8
fanouts = [3, 3]
replace = true
dropout = 0.0
choose = "last"
validate_every = 0
""",
    "dropout": """
[model]
kind = "gat"
dim = 8
[gnn]
rows = "learned"
hidden = 4
heads = 2
fanouts = [3, 3]
feature_dropout = 0.1
dropout = 0.4
attention_dropout = 0.3
choose = "last"
validate_every = 0
""",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = NodesConfig(nodes=NODES, classes=4, features=8, degree=4, noise=2.0)
    return make_nodes(tmp_path_factory.mktemp("graph") / "nodes.npz", settings)


def arguments(graph: Path, way: str, out: Path, *more: str) -> list[str]:
    config = graph.parent / f"{way}.toml"
    if not config.exists():
        config.write_text(COMMON + WAYS[way])
    return ["train", "--config", str(config), "--data", str(graph), "--out", str(out), *more]


@pytest.fixture(scope="module")
def alone(
    graph: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The files of a run of one process, with dropout of one rank."""
    found: dict[str, Path] = {}

    def run(way: str) -> Path:
        if way not in found:
            out = found[way] = tmp_path_factory.mktemp("alone")
            if way == "dropout":
                run_ranks(server, 1, arguments(graph, way, out), out)
            else:
                assert ended(fork(server, arguments(graph, way, out), out / "printed")) == 0
        return found[way]

    return run


def losses(out: Path) -> list[float]:
    curve = json.loads((out / "report.json").read_text())["curve"]
    return [point["loss"] for point in curve if "loss" in point]


def learned(out: Path) -> dict[str, NDArray[Any]]:
    """Dense weights by name, and the rows of every table in the order of ids."""
    with SavedRun.open(out) as saved:
        found = {name: weight.numpy() for name, weight in saved.weights.items()}
        ids: dict[str, list[Any]] = {}
        rows: dict[str, list[Any]] = {}
        for name, some, weights in saved.rows():
            ids.setdefault(name, []).append(some)
            rows.setdefault(name, []).append(weights)
    for name, some in ids.items():
        numbers = np.concatenate(some)
        assert len(set(numbers.tolist())) == len(numbers), "a row is on two ranks"
        found[name] = np.concatenate(rows[name])[np.argsort(numbers)]
    return found


def alike(out: Path, other: Path) -> None:
    """Check that two runs have the same steps, except for the order of sums."""
    assert losses(out) == pytest.approx(losses(other), rel=1e-5, abs=1e-5)
    mine, expected = learned(out), learned(other)
    assert mine.keys() == expected.keys()
    for name, weights in mine.items():
        np.testing.assert_allclose(weights, expected[name], atol=1e-4, rtol=1e-4, err_msg=name)
    reports = [json.loads((run / "report.json").read_text()) for run in (out, other)]
    assert reports[0]["test"] == pytest.approx(reports[1]["test"], abs=5e-3)
    for name in ("steps", "live_rows", "train_rows", "test_rows", "nodes", "edges"):
        assert reports[0]["run"][name] == reports[1]["run"][name], name


@pytest.mark.parametrize(
    ("way", "count"), [("features", 2), ("features", 4), ("learned", 3), ("dropout", 3)]
)
def test_ranks_give_the_steps_of_one_process(
    way: str,
    count: int,
    alone: Callable[[str], Path],
    graph: Path,
    server: ForkServerContext,
    tmp_path: Path,
) -> None:
    first, *others = run_ranks(server, count, arguments(graph, way, tmp_path), tmp_path)
    assert len(losses(tmp_path)) >= 200
    alike(tmp_path, alone(way))
    assert "test accuracy" in first
    assert others == [""] * (count - 1), "only one rank prints"
    assert json.loads((tmp_path / "report.json").read_text())["run"]["ranks"] == count


def test_features_on_one_rank_and_steps_in_flight_give_the_same_steps(
    alone: Callable[[str], Path], graph: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    more = "--placement", "whole:1", "--in-flight", "3"
    run_ranks(server, 2, arguments(graph, "features", tmp_path, *more), tmp_path)
    alike(tmp_path, alone("features"))


def test_a_killed_run_resumes_to_the_same_bits_or_on_another_number_of_ranks(
    alone: Callable[[str], Path], graph: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    every = "--checkpoint-every", "20"
    whole, killed, more = (tmp_path / name for name in ("whole", "killed", "more"))
    run_ranks(server, 2, arguments(graph, "dropout", whole, *every), whole)
    assert "rowmill: rank 1 was lost in step" in kill_second(
        server, arguments(graph, "dropout", killed, *every), killed
    )
    resumed = arguments(graph, "dropout", killed, *every, "--resume")
    assert "Resuming at step" in run_ranks(server, 2, resumed, killed)[0]
    assert losses(killed) == losses(whole)
    for name, weights in learned(killed).items():
        assert np.array_equal(weights, learned(whole)[name]), name

    kill_second(server, arguments(graph, "dropout", more, *every), more)
    resumed = arguments(graph, "dropout", more, *every, "--resume")
    assert "Warning: ranks was 2 and is 3" in run_ranks(server, 3, resumed, more)[0]
    alike(more, alone("dropout"))


def test_a_run_of_ranks_is_evaluated_like_one_of_one_process(
    graph: Path, server: ForkServerContext, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run_ranks(server, 2, arguments(graph, "features", out, "--epochs", "3"), out)
    report = json.loads((out / "report.json").read_text())
    assert main(["evaluate", str(out), "--data", str(graph), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == pytest.approx(report["test"], rel=1e-6)


def test_ranks_report_different_splits(
    graph: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    told = [arguments(graph, "features", tmp_path, *more) for more in ([], ["--split", "1"])]
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [2, 2]
    for said in printed(tmp_path, 2):
        assert said == (
            "rowmill: ranks disagree on the settings, gnn.split: rank 0 has 0, rank 1 has 1; it must be equal on all ranks\n"
        )


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("train", "backend", "nccl", "train.backend = 'nccl' does not work with --task gnn"),
    ],
)
def test_settings_of_a_single_process_are_refused_with_ranks(
    section: str, key: str, value: Any, named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_ranked_nodes(load_config(None, {("train", "task"): "gnn", (section, key): value}))
    assert str(refused.value).startswith(named)
    assert "without torchrun" in str(refused.value) or "use gloo" in str(refused.value)


def test_several_splits_are_refused_with_ranks(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(arguments(graph, "features", tmp_path / "out", "--splits", "2")) == 2
    said = capsys.readouterr().err
    assert (
        "gnn.splits = 2 does not work with many ranks: start the command without torchrun" in said
    )
    assert not (tmp_path / "out").exists()
