"""Trained runs of every task, one per session; tests read them and change only copies."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.kge.rings import graph_config, write_ring
from python.tests.partition.runs import config_of, write_log
from python.tests.train.configs import quiet
from rowmill.config import load_config
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig
from rowmill.train import train
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config import Config


@dataclass(frozen=True)
class Trained:
    """A run, its settings and its report."""

    config: Config
    report: dict[str, Any]

    @property
    def run(self) -> Path:
        return self.config.train.out

    @property
    def data(self) -> Path:
        path = self.config.data.path
        assert path is not None
        return path

    def copy(self, folder: Path) -> Path:
        """A copy of the run that a test may change."""
        return shutil.copytree(self.run, folder)

    def tested_by_trainer(self, run: Path) -> dict[str, Any]:
        """The test of the trainer at the last checkpoint of a copy."""
        train_config = replace(self.config.train, resume=True, out=run)
        with open_trainer(replace(self.config, train=train_config), quiet()) as trainer:
            return trainer.task.test()


def trained(config: Config) -> Trained:
    return Trained(config, train(config, quiet()))


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A DIN with a vocabulary and missing values, whose checkpoints are versions."""
    folder = tmp_path_factory.mktemp("clicks")
    write_log(folder / "log", "din")
    config = config_of(
        folder,
        "din",
        checkpoint__versions=3,
        checkpoint__best="auc",
        train__checkpoint_every=3,
        train__threads=16,
    )
    return trained(config)


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ring(tmp_path_factory.mktemp("ring"))


@pytest.fixture(scope="session")
def triples(ring: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A ComplEx with reciprocal relations, whose checkpoints are versions."""
    return trained(
        graph_config(
            tmp_path_factory.mktemp("triples") / "run",
            ring,
            checkpoint__versions=3,
            train__checkpoint_every=8,
        )
    )


def node_config(folder: Path, data: Path, **flags: Any) -> Config:
    settings: dict[str, Any] = {
        "train__task": "gnn",
        "data__path": data,
        "model__kind": "graphsage",
        "gnn__hidden": 16,
        "gnn__fanouts": [6, 4],
        "gnn__test_batch": 200,
        "store__memory": "64MiB",
        "train__batch": 16,
        "train__epochs": 3,
        "train__dense_lr": 0.01,
        "train__threads": 1,
        "train__out": folder,
        **flags,
    }
    return load_config(None, {tuple(key.split("__")): value for key, value in settings.items()})  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="session")
def node_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = NodesConfig(nodes=900, classes=3, features=12, noise=2.5)
    return make_nodes(tmp_path_factory.mktemp("graph") / "nodes.npz", settings)


@pytest.fixture(scope="session")
def nodes(node_graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A GraphSAGE, tested on sampled neighbours, with a checkpoint before its first validation as a version."""
    return trained(
        node_config(
            tmp_path_factory.mktemp("nodes") / "run",
            node_graph,
            gnn__test_fanouts=[5, 5],
            checkpoint__versions=9,
            train__checkpoint_every=3,
        )
    )
