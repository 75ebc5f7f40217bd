"""The task `gnn`: a graph neural network that classifies nodes, trained on samples of their neighbours.

The row of a node holds its features, which are only read, or a learned embedding. Rows of coming samples are prefetched.
The test metrics are computed once, with the model that had the best validation metrics.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from rowmill.config.setting import ConfigError
from rowmill.gnn import GAT, GraphSAGE, NeighbourSampler, NodeBatches
from rowmill.gnn.identity import node_identity
from rowmill.gnn.metrics import NodeMetrics
from rowmill.gnn.node_graph import read_node_graph
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.nn import Embedding
from rowmill.optim.specs import SGD
from rowmill.train.rows import StoredRows, new_table, open_rows
from rowmill.train.task import announced, check_task

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray
    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.gnn import NodeBatch
    from rowmill.gnn.node_graph import Features, NodeGraph, NodeSplit
    from rowmill.store.store import Store
    from rowmill.store.tables import Table

_FILL_ROWS = 1024
_MODELS = ("graphsage", "gat")


class ChosenModel(nn.Module):
    """A model in training, and a copy with the weights of its best validation."""

    best_figure: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.best = deepcopy(network).requires_grad_(requires_grad=False)
        self.register_buffer("best_figure", torch.tensor(-torch.inf, dtype=torch.float64))

    def consider(self, figure: float | None) -> None:
        """Keep the model as it is now if its figure is the best so far, or there is none to compare."""
        if figure is None or figure > self.best_figure:
            self.best.load_state_dict(self.network.state_dict())
            self.best_figure.fill_(-torch.inf if figure is None else figure)


class NodeTask:
    """A model of nodes and its graph."""

    def __init__(
        self,
        config: Config,
        graph: NodeGraph,
        split: NodeSplit,
        store: Store,
        identity: dict[str, Any],
        console: Console,
    ) -> None:
        self.config = config
        self.graph = graph
        self.split = split
        self.identity = identity
        self.window = NodeMetrics()
        self.embedding = None
        if graph.features is not None and config.gnn.rows == "features":
            self.table = feature_table(store, graph.features.dim, graph.nodes, config)
            _fill(self.table, graph.features, graph.nodes, normalize=config.gnn.normalize)
        else:
            self.table = new_table(
                store, config, "nodes", dim=config.model.dim, num_rows=graph.nodes
            )
            self.embedding = Embedding(graph.nodes, config.model.dim, table=self.table)
        self.rows = StoredRows(store, [self.table], console)
        torch.manual_seed(config.train.seed)
        self.model = ChosenModel(build_network(config, self.table.dim, graph.classes))
        self.optimizer = torch.optim.Adam(
            self.model.network.parameters(),
            lr=config.train.dense_lr,
            weight_decay=config.gnn.weight_decay,
        )
        self._batches = self._batches_of(
            split.train, config.gnn.fanouts, config.train.batch, replace=config.gnn.replace
        )
        self.train_rows = len(self._batches)

    def batches(self, epoch: int, start: int) -> Iterator[NodeBatch]:
        """Nodes of the train part, shuffled anew in every epoch, with samples of their neighbours."""
        return self._batches.epoch(epoch, start)

    def lookahead(self, batch: NodeBatch, *, steps: int) -> None:
        """Announce the nodes of a sample."""
        self.table.lookahead(batch.nodes, steps=steps)

    def look_up(self, batch: NodeBatch) -> Tensor:
        """What is known of the nodes of a sample, `[N, D]`."""
        # Features are only read: they take no clocks and come back to no device.
        return (
            self.table.get(batch.nodes) if self.embedding is None else self.embedding(batch.nodes)
        )

    def loss(self, batch: NodeBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the classes, and the scores of every class `[n, classes]`."""
        vectors = self._look_up_in_step(batch) if rows is None else rows
        scores = self.model.network(vectors, batch.blocks)
        return cross_entropy(scores, batch.labels), scores

    def _look_up_in_step(self, batch: NodeBatch) -> Tensor:
        # Features that are only read make no step by themselves; announced rows wait for one.
        with self.rows.store.forward():
            return self.look_up(batch)

    def observe(self, batch: NodeBatch, predicted: Tensor) -> None:
        """The scores of a batch that was learned from."""
        self.window.update(predicted, batch.labels)

    def validates(self, epochs: int) -> bool:
        """Every so many epochs, and after the last."""
        every = self.config.gnn.validate_every
        return epochs == self.config.train.epochs or bool(every and epochs % every == 0)

    def validate(self) -> dict[str, float | None]:
        """Figures of the valid part, as `valid_accuracy` and so on."""
        figures = self._measure(self.model.network, self.split.valid)
        if self.config.gnn.choose == "best":
            self.model.consider(figures["auc" if "auc" in figures else "accuracy"])
        else:
            self.model.consider(None)
        return {f"valid_{key}": value for key, value in figures.items()}

    def test(self) -> dict[str, float | None]:
        """Figures of the test part, of the chosen model."""
        return self._measure(self.model.best, self.split.test)

    def described(self) -> dict[str, Any]:
        """Nothing: export and prediction are for click models."""
        return {}

    def about(self) -> dict[str, Any]:
        """Sizes of the graph and its parts."""
        graph, split = self.graph, self.split
        return {
            "run": {
                "train_rows": self.train_rows,
                "test_rows": len(split.test),
                "valid_rows": len(split.valid),
                "nodes": graph.nodes,
                "edges": graph.edges,
                "classes": graph.classes,
            }
        }

    def _batches_of(
        self, nodes: NDArray[np.int64], fanouts: tuple[int, ...], batch: int, *, replace: bool
    ) -> NodeBatches:
        graph, seed = self.graph, self.config.train.seed
        sampler = NeighbourSampler(
            graph.indptr, graph.indices, fanouts=fanouts, replace=replace, seed=seed
        )
        return NodeBatches(
            sampler,
            nodes,
            graph.labels,
            batch=batch,
            seed=seed,
            threads=self.config.gnn.sample_threads,
        )

    @torch.no_grad()
    def _measure(self, network: nn.Module, nodes: NDArray[np.int64]) -> dict[str, float | None]:
        """Figures of some nodes, by samples that are the same each time."""
        settings = self.config.gnn
        fanouts = settings.test_fanouts or (-1,) * len(settings.fanouts)
        batches = self._batches_of(nodes, fanouts, settings.test_batch, replace=False)
        metrics = NodeMetrics()
        network.eval()
        ahead = announced(
            batches.in_order(),
            lambda batch, steps: self.lookahead(batch, steps=steps),
            self.config.store,
        )
        for batch in ahead:
            with self.rows.store.forward():
                vectors = self.table.get(batch.nodes)
            metrics.update(network(vectors, batch.blocks), batch.labels)
        network.train()
        return metrics.compute()


@contextmanager
def open_nodes(config: Config, console: Console, threads: int) -> Generator[NodeTask]:
    """The model of the settings and its graph, with its store open."""
    graph = _graph(config, console)
    split = _split(config, graph, config.gnn.split)
    identity = node_identity(config, graph)
    with open_rows(config, threads=threads, identity=identity) as store:
        yield NodeTask(config, graph, split, store, identity, console)


def check_splits(config: Config, console: Console) -> None:
    """Raise unless the graph has all the splits that the settings name, so that no run ends for want of the next."""
    graph = _graph(config, console)
    for number in range(config.gnn.split, config.gnn.split + config.gnn.splits):
        _split(config, graph, number)


def _graph(config: Config, console: Console) -> NodeGraph:
    path = check_task(
        config, data="the .npz file of the graph", models=_MODELS, what="a graph of nodes"
    )
    check_settings(config)
    if config.nodes is not None:
        if not path.exists():
            console.print(
                f"Generating {config.nodes.nodes:,} nodes in {path}", highlight=False, markup=False
            )
        make_nodes(path, config.nodes)
    settings = config.gnn
    graph = read_node_graph(
        path,
        directed=settings.directed,
        self_loops=settings.self_loops,
        isolated=settings.isolated,
    )
    if graph.features is None and settings.rows == "features":
        raise ConfigError(
            f'{path} has no features: set gnn.rows = "learned" to learn an embedding of every node'
        )
    return graph


def _split(config: Config, graph: NodeGraph, number: int) -> NodeSplit:
    return graph.split(
        number,
        train_per_class=config.gnn.train_per_class,
        valid_per_class=config.gnn.valid_per_class,
    )


def feature_table(store: Store, dim: int, nodes: int, config: Config) -> Table:
    """A table of rows that are only read."""
    return store.table(
        "features",
        dim=dim,
        # Has no state, so a row is its features and nothing else.
        optimizer=SGD(lr=0.0),
        dtype=config.rows.dtype,
        staleness_bound=None,
        num_rows=nodes,
    )


def _fill(table: Table, features: Features, nodes: int, *, normalize: bool) -> None:
    """Put every node's features, unless they are all there."""
    for start in range(0 if len(table) < nodes else nodes, nodes, _FILL_ROWS):
        stop = min(start + _FILL_ROWS, nodes)
        rows = features.rows(start, stop)
        if normalize:
            rows /= np.abs(rows).sum(axis=1, keepdims=True).clip(min=1e-12)
        table.put(np.arange(start, stop), rows)


def build_network(config: Config, dim: int, classes: int) -> nn.Module:
    """The model that the settings name, over vectors of `dim`."""
    settings = config.gnn
    layers, hidden = len(settings.fanouts), settings.hidden
    if config.model.kind == "gat":
        return GAT(
            dim,
            hidden,
            classes,
            layers=layers,
            heads=settings.heads,
            last_heads=settings.last_heads,
            feature_dropout=settings.feature_dropout,
            dropout=settings.dropout,
            attention_dropout=settings.attention_dropout,
        )
    return GraphSAGE(
        dim,
        hidden,
        classes,
        layers=layers,
        feature_dropout=settings.feature_dropout,
        dropout=settings.dropout,
        norm=settings.norm,
        residual=settings.residual,
    )


def check_settings(config: Config) -> None:
    """Raise where settings do not go together."""
    settings, kind = config.gnn, config.model.kind
    for name in ("fanouts", "test_fanouts"):
        if 0 in getattr(settings, name):
            raise ConfigError(
                f"gnn.{name} has a 0: draw at least 1 neighbour, or -1 for all of them"
            )
    if not settings.fanouts:
        raise ConfigError("gnn.fanouts is empty: a model has at least one layer")
    if settings.test_fanouts and len(settings.test_fanouts) != len(settings.fanouts):
        raise ConfigError(
            f"gnn.test_fanouts has {len(settings.test_fanouts)} layers and gnn.fanouts {len(settings.fanouts)}: "
            "give as many, or none for all neighbours"
        )
    if settings.rows == "learned" and settings.choose == "best" and settings.validate_every:
        raise ConfigError(
            'gnn.choose = "best" keeps a copy of the model, but rows that are learned have none: set it to "last"'
        )
    if settings.rows == "features":
        removed = config.eviction.rule != "none"
        if removed or config.admission.min_count is not None:
            raise ConfigError(
                f'[{"eviction" if removed else "admission"}] is for rows that are learned, but gnn.rows = "features": drop it'
            )
    for name, model in {
        "attention_dropout": "gat",
        "norm": "graphsage",
        "residual": "graphsage",
    }.items():
        if getattr(settings, name) and kind != model:
            raise ConfigError(f"gnn.{name} is for model.kind = {model!r}, not {kind!r}: drop it")
