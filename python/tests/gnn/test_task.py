"""`rowmill train --task gnn` end to end: it learns, equals plain torch, with any memory budget, and resumes exactly.

The graph is generated: the features of one node say little about its class, those of its neighbourhood say much.
"""

from __future__ import annotations

import json
import signal
import time
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.train.configs import quiet
from python.tests.train.cut_off import cut_off
from python.tests.train.runs import ended, epoch, fork, scalars, until
from rowmill.cli import main
from rowmill.config import Config, ConfigError, load_config
from rowmill.errors import DataError, InvalidInput
from rowmill.gnn import GraphSAGE
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig
from rowmill.gnn.splits import best_of_valid, train_splits
from rowmill.gnn.task import NodeTask
from rowmill.train import train
from rowmill.train.run import Trainer, open_trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    Make = Callable[..., Config]

NODES, CLASSES, DIM = 1500, 4, 24


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = NodesConfig(nodes=NODES, classes=CLASSES, features=DIM, noise=2.5)
    return make_nodes(tmp_path_factory.mktemp("graph") / "nodes.npz", settings)


@pytest.fixture
def make(graph: Path, tmp_path: Path) -> Make:
    def make_config(name: str = "run", **flags: Any) -> Config:
        settings: dict[str, Any] = {
            "train__task": "gnn",
            "data__path": graph,
            "model__kind": "graphsage",
            "gnn__hidden": 16,
            "gnn__fanouts": [6, 4],
            "gnn__feature_dropout": 0.1,
            "store__memory": "64MiB",
            "train__batch": 16,
            "train__epochs": 3,
            "train__dense_lr": 0.01,
            "train__threads": 1,
            "train__log_every": 3,
            "train__out": tmp_path / name,
            **flags,
        }
        given = {tuple(key.split("__")): value for key, value in settings.items()}
        return load_config(None, given)  # pyright: ignore[reportArgumentType]

    return make_config


def task_of(trainer: Trainer) -> NodeTask:
    assert isinstance(trainer.task, NodeTask)
    return trainer.task


def points(report: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The training and validation metrics of a learning curve, without times."""
    keys = ("step", "loss", "accuracy", "valid_loss", "valid_accuracy")
    return [tuple(point.get(key) for key in keys) for point in report["curve"]]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gnn__norm": True, "gnn__residual": True, "gnn__fanouts": [6, 4, 3]},
        {"gnn__replace": True, "gnn__test_fanouts": [20, 20]},
        {
            "model__kind": "gat",
            "gnn__hidden": 8,
            "gnn__dropout": 0.2,
            "gnn__attention_dropout": 0.1,
        },
        {
            "gnn__rows": "learned",
            "gnn__choose": "last",
            "gnn__feature_dropout": 0.0,
            "rows__lr": 0.3,
            "rows__initial_width": 0.5,
            "gnn__train_per_class": 150,
        },
        {"rows__dtype": "bf16", "gnn__normalize": True, "gnn__dropout": 0.0, "train__epochs": 60},
    ],
)
def test_models_learn_the_classes(make: Make, settings: dict[str, Any]) -> None:
    report = train(make(**{"train__epochs": 20, **settings}), quiet())
    # Guessing gives 0.25.
    assert report["test"]["accuracy"] > 0.7, report["test"]
    assert report["test"]["loss"] < 1.0
    assert "auc" not in report["test"]


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("graphsage", "gnn__normalize", True),
        ("graphsage", "gnn__fanouts", [6, 5]),
        ("graphsage", "gnn__replace", True),
        ("graphsage", "gnn__test_fanouts", [3, 3]),
        ("graphsage", "gnn__hidden", 17),
        ("graphsage", "gnn__norm", True),
        ("graphsage", "gnn__residual", True),
        ("graphsage", "gnn__dropout", 0.4),
        ("graphsage", "gnn__feature_dropout", 0.2),
        ("graphsage", "gnn__weight_decay", 0.1),
        ("graphsage", "gnn__directed", True),
        ("graphsage", "gnn__split", 1),
        ("graphsage", "gnn__train_per_class", 21),
        ("graphsage", "gnn__valid_per_class", 31),
        ("graphsage", "gnn__validate_every", 2),
        ("graphsage", "train__seed", 1),
        ("graphsage", "model__kind", "gat"),
        ("gat", "gnn__hidden", 17),
        ("gat", "gnn__heads", 7),
        ("gat", "gnn__last_heads", 2),
        ("gat", "gnn__dropout", 0.4),
        ("gat", "gnn__feature_dropout", 0.2),
        ("gat", "gnn__attention_dropout", 0.2),
    ],
)
def test_every_setting_changes_the_result(make: Make, kind: str, key: str, value: object) -> None:
    # Three layers of equal width, so that residual connections apply.
    settings = {"gnn__hidden": 8, "gnn__fanouts": [6, 4, 2], "gnn__isolated": "keep"}
    if key == "gnn__fanouts":
        value = [6, 5, 2]
    elif key == "gnn__test_fanouts":
        value = [3, 3, 3]
    settings |= {"model__kind": kind, "train__epochs": 2}
    usual = train(make("usual", **settings), quiet())
    changed = train(make("changed", **{**settings, key: value}), quiet())
    assert points(usual) != points(changed)


def test_features_are_stored_unchanged_or_normalized(make: Make, graph: Path) -> None:
    with np.load(graph) as file:
        features = file["node_features"]
    sums = np.abs(features).sum(axis=1, keepdims=True)
    for normalize, expected in ((False, features), (True, features / sums)):
        with open_trainer(make(gnn__normalize=normalize), quiet()) as trainer:
            table = task_of(trainer).table
            np.testing.assert_allclose(table.get(np.arange(NODES)), expected, rtol=1e-6)
            assert table.core.state_floats == 0


def test_accuracy_comes_from_neighbours(make: Make, tmp_path: Path) -> None:
    """The same graph with random edges is much harder to classify."""
    settings = NodesConfig(nodes=NODES, classes=CLASSES, features=DIM, noise=2.5, within=0.0)
    path = make_nodes(tmp_path / "mixed.npz", settings)
    accuracy = [
        train(make(name, train__epochs=20, **flags), quiet())["test"]["accuracy"]
        for name, flags in {"planted": {}, "mixed": {"data__path": path}}.items()
    ]
    assert accuracy[0] > accuracy[1] + 0.1


def test_two_classes_have_an_auc_too(make: Make, tmp_path: Path) -> None:
    path = make_nodes(tmp_path / "two.npz", NodesConfig(nodes=600, classes=2, noise=2.0))
    report = train(make(data__path=path, train__epochs=15), quiet())
    assert report["test"]["auc"] > 0.8
    assert report["test"]["auc"] > report["test"]["accuracy"]
    assert {"valid_auc", "valid_accuracy"} <= set(report["curve"][-1])


def test_an_auc_that_is_undefined_has_no_best() -> None:
    curve: list[dict[str, Any]] = [{"valid_auc": None, "valid_accuracy": 0.5}] * 2
    assert best_of_valid(curve) == {"valid_auc": None, "valid_accuracy": 0.5}
    assert best_of_valid([*curve, {"valid_auc": 0.7}])["valid_auc"] == 0.7


def test_generated_nodes_do_not_replace_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "nodes.npz"
    path.touch()
    with pytest.raises(DataError, match=r"nodes\.npz"):
        make_nodes(path, NodesConfig(nodes=600))


def test_a_run_equals_plain_torch(make: Make, graph: Path) -> None:
    """All neighbours, no dropout, Adam with weight decay, against torch modules with a dense adjacency matrix."""
    config = make(
        gnn__fanouts=[-1, -1],
        gnn__feature_dropout=0.0,
        gnn__dropout=0.0,
        gnn__weight_decay=0.01,
        train__dense_decay_from=1.0,
    )
    with np.load(graph) as file:
        edges, features = file["edges"], torch.from_numpy(file["node_features"])
    counts = torch.zeros(NODES, NODES)
    for ends in (edges.T, edges.T[::-1]):
        counts[tuple(torch.from_numpy(ends.copy()))] = 1.0
    means = counts / counts.sum(1, keepdim=True)
    with open_trainer(config, quiet()) as trainer:
        task = task_of(trainer)
        network = GraphSAGE(DIM, 16, CLASSES, layers=2)
        network.load_state_dict(task.model.network.state_dict())
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
        losses: list[tuple[float, float]] = []
        first, last = network.layers
        for number in range(2):
            for batch in task.batches(number, 0):
                ours = float(trainer.train_step(batch))
                hidden = (first.own(features) + first.neighbours(means @ features)).relu()  # pyright: ignore[reportCallIssue]
                scores = last.own(hidden) + last.neighbours(means @ hidden)  # pyright: ignore[reportCallIssue]
                seeds = batch.nodes[: len(batch)]
                loss = torch.nn.functional.cross_entropy(scores[seeds], batch.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append((ours, float(loss.detach())))
    ours, theirs = np.array(losses).T
    assert ours[-1] < ours[0] - 0.2
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_the_best_model_on_validation_is_tested(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation metrics rise and fall, and the run is stopped after the best: the weights of the best are tested."""
    figures = iter([0.3, 0.6, 0.6, 0.6, 0.5, 0.2])
    valid: list[torch.Tensor] = []
    tested: list[torch.Tensor] = []
    original = NodeTask._measure  # pyright: ignore[reportPrivateUsage]

    def planned(task: NodeTask, network: torch.nn.Module, nodes: Any) -> dict[str, float | None]:
        weights = next(network.parameters()).detach().clone()
        if network is task.model.best:
            tested.append(weights)
            return original(task, network, nodes)
        valid.append(weights)
        return {"loss": 1.0, "accuracy": next(figures)}

    monkeypatch.setattr(NodeTask, "_measure", planned)
    settings = {"train__epochs": 5, "train__checkpoint_every": 5}
    with cut_off(10, monkeypatch):
        train(make(**settings), quiet())
    assert len(valid) == 2
    train(make(train__resume=True, **settings), quiet())
    assert len(valid) == 6
    assert torch.equal(valid[2], valid[1]), "the checkpoint was made before the validation"
    assert torch.equal(tested[0], valid[2])
    assert not torch.equal(tested[0], valid[3])
    assert not torch.equal(tested[0], valid[5])


def test_choose_last_tests_the_last_model(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[bool] = []
    original = NodeTask.test

    def compared(task: NodeTask) -> dict[str, float | None]:
        both = (task.model.network, task.model.best)
        states = [[weights.tolist() for weights in one.state_dict().values()] for one in both]
        tested.append(states[0] == states[1])
        return original(task)

    monkeypatch.setattr(NodeTask, "test", compared)
    settings = {"train__epochs": 12, "gnn__dropout": 0.0, "train__dense_lr": 0.3}
    for choose in ("best", "last"):
        train(make(choose, gnn__choose=choose, **settings), quiet())
    assert tested == [False, True]


def cold_steps(task: NodeTask, trainer: Trainer, steps: int) -> list[tuple[int, int]]:
    """Per step, after all prefetches have ended: rows prefetched before it, and rows it had to read from the device."""
    store, counted = task.rows.store, []
    before = store.stats()
    for batch in (batch for _, batch in zip(range(steps), trainer.ahead(0), strict=False)):
        settled(task)
        ready = store.stats()
        task.look_up(batch)
        after = store.stats()
        loaded = ready["lookahead_loaded"] - before["lookahead_loaded"]
        counted.append((loaded, after["cold_reads"] - ready["cold_reads"]))
        before = after
    return counted


def settled(task: NodeTask) -> None:
    """Wait until all prefetches have ended."""
    deadline, last, quiet_rounds = time.monotonic() + 60.0, -1, 0
    while quiet_rounds < 3:
        assert time.monotonic() < deadline
        loaded = task.rows.store.stats()["lookahead_loaded"]
        quiet_rounds = quiet_rounds + 1 if loaded == last else 0
        last = loaded
        time.sleep(0.02)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 1,600 bytes, so that a tenth of the rows is about 200 KB."""
    settings = NodesConfig(nodes=2500, classes=4, features=400, degree=4)
    return make_nodes(tmp_path_factory.mktemp("wide") / "nodes.npz", settings)


def test_cold_rows_are_read_before_the_step_that_needs_them(make: Make, wide: Path) -> None:
    counted: dict[int, list[tuple[int, int]]] = {}
    for lookahead in (0, 2):
        config = make(
            f"ahead {lookahead}",
            data__path=wide,
            store__row_memory="1MiB",
            store__lookahead=lookahead,
            gnn__fanouts=[3, 2],
        )
        with open_trainer(config, quiet()) as trainer:
            task = task_of(trainer)
            counted[lookahead] = cold_steps(task, trainer, 5)
            assert task.rows.store.stats()["tables"]["features"]["rows"] == 2500
    assert all(loaded == 0 and cold > 30 for loaded, cold in counted[0])
    # The first step has no batch before it that could prefetch its rows.
    assert all(cold == 0 for _, cold in counted[2][1:]), counted
    assert sum(loaded for loaded, _ in counted[2]) > 100, counted


@pytest.mark.parametrize("rows", ["features", "learned"])
def test_row_memory_for_a_tenth_of_the_rows_changes_no_bit(
    make: Make, wide: Path, rows: str
) -> None:
    settings = {
        "data__path": wide,
        "gnn__rows": rows,
        "gnn__choose": "last",
        "model__dim": 200,
        "train__epochs": 2,
    }
    whole = train(make("all", **settings), quiet())
    live = whole["run"]["live_row_bytes"]
    # Only sampled nodes have an embedding.
    assert live >= (2500 if rows == "features" else 500) * 1600
    for name, flags in (
        ("tenth", {"store__lookahead": 4}),
        ("tenth, blind", {"store__lookahead": 0}),
        ("tenth, threads", {"store__lookahead": 4, "gnn__sample_threads": 3}),
    ):
        config = make(name, **settings, **flags, store__row_memory=str(live // 10))
        report = train(config, quiet())
        assert report["test"] == whole["test"]
        assert points(report) == points(whole)
        run = report["run"]
        assert run["row_limit"] <= live / 10
        assert run["device_blocks_read"] > 500, "rows must have been evicted"
        assert (run["lookahead_loaded"] > 0) == (config.store.lookahead > 0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train__in_flight": 3, "gnn__sample_threads": 2},
        {"gnn__rows": "learned", "gnn__choose": "last", "train__in_flight": 2},
        {"model__kind": "gat", "gnn__attention_dropout": 0.2, "gnn__replace": True},
    ],
)
def test_a_run_stopped_at_any_step_resumes_to_the_same_bits(
    make: Make, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    settings = {"train__checkpoint_every": 4, **settings}
    whole = train(make("whole", **settings), quiet())
    steps = whole["run"]["steps"]
    assert steps == 15
    for cut in (2, 4, 7, 8, steps - 1):
        name = f"cut {cut}"
        with cut_off(cut, monkeypatch):
            train(make(name, **settings), quiet())
        report = train(make(name, train__resume=True, **settings), quiet())
        assert report["test"] == whole["test"]
        assert points(report) == points(whole)
        assert weights(make(name).train.out) == weights(make("whole").train.out)


def weights(out: Path) -> dict[str, list[int]]:
    """Every row of a run's store, with its optimizer state, as bits."""
    with rowmill.open(out / "store", memory="64MiB", read_only=True) as store:
        found = {}
        for name in store.table_names():
            table = store.open_table(name)
            ids = np.arange(table.num_rows or 0)
            rows = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
            found[name] = rows.view(np.int32).tolist()
    return found


def test_a_killed_run_resumes_to_the_same_bits(
    make: Make, server: ForkServerContext, graph: Path, tmp_path: Path
) -> None:
    """`kill -9` of the command, four times, at times drawn from a seed."""
    whole = train(make("whole", train__epochs=12, train__checkpoint_every=2), quiet())
    file = tmp_path / "run.toml"
    file.write_text(
        f"""
        [data]
        path = "{graph}"
        [model]
        kind = "graphsage"
        [gnn]
        hidden = 16
        fanouts = [6, 4]
        feature_dropout = 0.1
        [store]
        memory = "64MiB"
        [train]
        task = "gnn"
        batch = 16
        epochs = 12
        dense_lr = 0.01
        threads = 1
        log_every = 3
        checkpoint_every = 2
        out = "{tmp_path / "killed"}"
        """
    )
    store, random = tmp_path / "killed/store", Random(4)
    command = ["train", "--config", str(file), "--resume"]
    for _ in range(4):
        process = fork(server, command, tmp_path / "printed.txt")
        least = epoch(store) + random.randrange(1, 6)
        until(lambda least=least: epoch(store) >= least, process.is_alive)
        time.sleep(random.random() * 0.02)
        process.kill()
        assert ended(process) == -signal.SIGKILL
    assert ended(fork(server, command, tmp_path / "printed.txt")) == 0
    report = json.loads((tmp_path / "killed/report.json").read_text())
    assert report["test"] == whole["test"]
    assert points(report) == points(whole)
    assert (tmp_path / "printed.txt").read_text().count("Resuming at step") == 4


def test_rows_of_coming_batches_are_prefetched(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_trainer(make(store__lookahead=3), quiet()) as trainer:
        task, announced = task_of(trainer), []
        batches = list(task.batches(0, 0))

        def note(nodes: torch.Tensor, *, steps: int) -> None:
            announced.append((nodes.tolist(), steps))

        monkeypatch.setattr(task.table, "lookahead", note)
        stream = trainer.ahead(0)
        next(stream), next(stream)
        expected = zip([1, 2, 3, 4], [2, 3, 4, 4], strict=True)
        assert announced == [(batches[n].nodes.tolist(), steps) for n, steps in expected]


def test_the_command_generates_a_graph_and_reports_the_mean_over_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "nodes.npz", tmp_path / "run"
    generate = ["data", "nodes", "--out", str(path), "--nodes", "600", "--classes", "3"]
    assert main(generate) == 0
    assert capsys.readouterr().out == f"{path}\n"
    task = ["train", "--task", "gnn", "--model", "graphsage", "--data", str(path)]
    flags = ["--epochs", "8", "--batch", "20", "--threads", "1", "--memory", "64MiB"]
    command = [*task, *flags, "--out", str(out), "--splits", "3", "--split", "5"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    result = json.loads((out / "splits.json").read_text())
    values = result["test"]["accuracy"]["values"]
    assert result["splits"] == [5, 6, 7]
    assert len(set(values)) == 3
    assert result["test"]["accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert result["test"]["accuracy"]["deviation"] == pytest.approx(np.std(values, ddof=1))
    mean, deviation = np.mean(values), np.std(values, ddof=1)
    assert f"test accuracy       {mean:.4f} +- {deviation:.4f}, 3 splits" in printed
    reports = [
        json.loads((out / f"split-{number}/report.json").read_text()) for number in (5, 6, 7)
    ]
    assert [report["test"]["accuracy"] for report in reports] == values
    assert [report["config"]["train"]["seed"] for report in reports] == [0, 1, 2]
    curve = [point["valid_accuracy"] for point in reports[0]["curve"] if "valid_accuracy" in point]
    assert result["valid"]["valid_accuracy"]["values"][0] == max(curve)
    page = (out / "split-5/report.html").read_text()
    assert "Test accuracy" in page
    assert "Validation accuracy" in page
    assert len(scalars(out / "split-5/events", "train/valid_accuracy")["train/valid_accuracy"]) == 8
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().out.count("Nothing to do: the run is complete") == 3
    assert main([*command, "--store", str(tmp_path / "one")]) == 2
    assert "store.path does not work with gnn.splits = 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model__kind": "dlrm"}, r"model\.kind must be .* for a graph of nodes, got 'dlrm'"),
        (
            {"train__plain": True},
            r"train\.plain applies only to --task ctr; remove it for --task gnn",
        ),
        ({"data__ids": "hash"}, r"data\.ids applies only to --task ctr; remove it for --task gnn"),
        ({"gnn__fanouts": []}, r"gnn\.fanouts is empty"),
        ({"gnn__fanouts": [4, 0]}, r"gnn\.fanouts has a 0"),
        ({"gnn__test_fanouts": [4]}, r"gnn\.test_fanouts has 1 entries and gnn\.fanouts 2"),
        (
            {"gnn__rows": "learned"},
            r'gnn\.choose = "best" does not work with gnn\.rows = "learned"',
        ),
        (
            {"gnn__attention_dropout": 0.1},
            r"gnn\.attention_dropout works only with model\.kind = 'gat'",
        ),
        (
            {"model__kind": "gat", "gnn__norm": True},
            r"gnn\.norm works only with model\.kind = 'graphsage'",
        ),
        ({"admission__min_count": 2}, r"\[admission\] works only with gnn\.rows"),
        (
            {"eviction__rule": "ttl", "eviction__steps": 5},
            r"\[eviction\] works only with gnn\.rows",
        ),
        ({"gnn__train_per_class": 1000}, "nodes, but a split needs 1000 training"),
    ],
)
def test_contradicting_settings_are_refused(
    make: Make, flags: dict[str, Any], message: str
) -> None:
    config = make(**flags)
    with pytest.raises(InvalidInput, match=message):
        train(config, quiet())
    assert not config.train.out.exists(), "no output folder was made"


def test_settings_allow_self_loops_and_isolated_nodes(
    make: Make, graph: Path, tmp_path: Path
) -> None:
    with np.load(graph) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["edges"] = np.concatenate([arrays["edges"][arrays["edges"].min(1) > 5], [[9, 9]]])
    np.savez(tmp_path / "odd.npz", **arrays)
    settings = {"data__path": tmp_path / "odd.npz"}
    for said, message in (
        ({}, "edge .* to itself"),
        ({"gnn__self_loops": "drop"}, "no neighbours"),
    ):
        with pytest.raises(DataError, match=message):
            train(make(**settings, **said), quiet())
    both = {"gnn__self_loops": "keep", "gnn__isolated": "keep"}
    kept = train(make("kept", **settings, **both), quiet())
    dropped = train(make("dropped", **settings, **both | {"gnn__self_loops": "drop"}), quiet())
    assert kept["run"]["edges"] == dropped["run"]["edges"] + 1


def test_a_graph_without_features_needs_learned_rows(make: Make, tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", edges=np.array([[0, 1]]), labels=np.array([0, 1]))
    with pytest.raises(ConfigError, match=r'no features, .*: set gnn\.rows = "learned"'):
        train(make(data__path=tmp_path / "bare.npz"), quiet())


def test_settings_of_nodes_generate_the_graph_first(make: Make, tmp_path: Path) -> None:
    nodes = {"nodes__nodes": 700, "nodes__classes": 3, "data__path": tmp_path / "new/nodes.npz"}
    assert train(make(**nodes), quiet())["run"]["nodes"] == 700
    with pytest.raises(DataError, match="was not generated with these settings"):
        train(make("other", **{**nodes, "nodes__nodes": 701}), quiet())
    with pytest.raises(ConfigError, match=r"\[sequences\] and \[nodes\] both write data\.path"):
        make(**nodes, sequences__users=5)


def test_resume_refuses_another_graph_or_other_settings(make: Make, tmp_path: Path) -> None:
    train(make(), quiet())
    settings = NodesConfig(nodes=NODES, classes=CLASSES, features=DIM, noise=2.6)
    other = make_nodes(tmp_path / "other.npz", settings)
    for flags, message in (
        ({"data__path": other}, "checksum of the graph was"),
        ({"gnn__fanouts": [6, 5]}, r"gnn\.fanouts was \[6, 4\] and is \[6, 5\]"),
        ({"gnn__split": 1}, r"gnn\.split was 0 and is 1"),
        ({"train__batch": 17}, r"train\.batch was 16 and is 17"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(make(train__resume=True, **flags), quiet())


def test_a_call_trains_all_splits(make: Make) -> None:
    result = train_splits(make(gnn__splits=2), quiet())
    alone = train(make("alone", gnn__split=1, train__seed=1), quiet())
    assert result["test"]["accuracy"]["values"][1] == alone["test"]["accuracy"]


def test_a_missing_split_is_an_error_before_training_starts(
    make: Make, graph: Path, tmp_path: Path
) -> None:
    with np.load(graph) as file:
        arrays = dict(file)
    place = np.arange(NODES) % 3
    parts = [("train_masks", 0), ("val_masks", 1), ("test_masks", 2)]
    masks = {name: np.stack([place == part] * 2) for name, part in parts}
    np.savez(tmp_path / "fixed.npz", allow_pickle=False, **arrays, **masks)
    config = make(data__path=tmp_path / "fixed.npz", gnn__splits=3)
    with pytest.raises(DataError, match=r"has 2 splits, but gnn\.split = 2"):
        train_splits(config, quiet())
    assert not config.train.out.exists(), "no output folder was made"
