"""The task `gnn`: a graph neural network that classifies nodes, trained with neighbour sampling.

The row of a node holds its features, which are read-only, or a learned embedding. The rows of upcoming batches are
prefetched. The test metrics are computed once, at the end, with the model chosen by `gnn.choose`.
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
from rowmill.train.found_run import saved_run
from rowmill.train.identity import CHECKSUM
from rowmill.train.parts import numbered
from rowmill.train.rows import StoredRows, new_table, open_rows
from rowmill.train.task import announced, check_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.gnn import NodeBatch
    from rowmill.gnn.metrics import NodeMetricsOfAllRanks
    from rowmill.gnn.node_graph import NodeGraph, NodeSplit
    from rowmill.store.store import Store
    from rowmill.store.tables import Table

_FILL_ROWS = 1024
_MODELS = ("graphsage", "gat")


class ChosenModel(nn.Module):
    """The model in training (`network`), and a copy with the weights of the best validation (`best`)."""

    best_figure: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.best = deepcopy(network).requires_grad_(requires_grad=False)
        self.register_buffer("best_figure", torch.tensor(-torch.inf, dtype=torch.float64))

    def consider(self, figure: float | None) -> None:
        """Copy the current weights to `best` if the validation metric is the highest so far, or is None."""
        if figure is None or figure > self.best_figure:
            self.best.load_state_dict(self.network.state_dict())
            self.best_figure.fill_(-torch.inf if figure is None else figure)


class NewGraph:
    """The change of a run that is continued with a new graph: the best model is chosen again, on its validation nodes.

    It is a `rowmill.train.state.Change`.
    """

    def __init__(self, nodes_before: int, nodes: int) -> None:
        self._nodes = (nodes_before, nodes)

    @property
    def columns_before(self) -> None:
        """None: a graph has no columns."""

    def __str__(self) -> str:
        before, now = self._nodes
        return f"{before:,} nodes before, {now:,} now"

    def adapted(
        self, content: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Any]:
        """The content without the best metric so far."""
        weights: dict[str, Any] = dict(content["model"])
        weights["best_figure"] = torch.full_like(weights["best_figure"], -torch.inf)
        return {**content, "model": weights}


class NodeTask:
    """A graph, and the model that is trained to classify its nodes."""

    def __init__(
        self,
        config: Config,
        graph: NodeGraph,
        split: NodeSplit,
        rows: StoredRows,
        identity: dict[str, Any],
        change: NewGraph | None = None,
        *,
        rank: int = 0,
        ranks: int | None = None,
    ) -> None:
        self.change = change
        self.config = config
        self.graph = graph
        self.split = split
        self.identity = identity
        self.window: NodeMetrics | NodeMetricsOfAllRanks = NodeMetrics()
        self.rows = rows
        (self.table,) = rows.tables
        self.embedding = None
        if not has_feature_rows(config, graph):
            self.embedding = Embedding(self.table.num_rows, self.table.dim, table=self.table)
        torch.manual_seed(config.train.seed)
        self.model = ChosenModel(build_network(config, self.table.dim, graph.classes))
        self.optimizer = torch.optim.Adam(
            self.model.network.parameters(),
            lr=config.train.dense_lr,
            weight_decay=config.gnn.weight_decay,
        )
        self._part = (rank, ranks)
        self._batches = batches_to_train(config, graph, split.train, part=self._part)
        self.train_rows = len(self._batches)

    def batches(self, epoch: int, start: int) -> Iterator[NodeBatch]:
        """Batches of training nodes with sampled neighbours, in a new random order each epoch."""
        return self._batches.epoch(epoch, start)

    def lookahead(self, batch: NodeBatch, *, steps: int) -> None:
        """Prefetch the rows of a batch that comes in `steps` steps."""
        self.table.lookahead(batch.nodes, steps=steps)

    def look_up(self, batch: NodeBatch) -> Tensor:
        """The features or embeddings of the nodes of a sample, `[N, D]`."""
        # Features are read-only: `get` takes no staleness clocks and causes no write-back.
        return (
            self.table.get(batch.nodes) if self.embedding is None else self.embedding(batch.nodes)
        )

    def loss(self, batch: NodeBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The cross-entropy loss, a scalar, and the scores of every class, `[n, classes]`."""
        vectors = self._look_up_in_step(batch) if rows is None else rows
        scores = self.model.network(vectors, batch.blocks)
        return cross_entropy(scores, batch.labels), scores

    def _look_up_in_step(self, batch: NodeBatch) -> Tensor:
        # `get` does not start a store step, but prefetched rows are held until a step begins.
        with self.rows.store.forward():
            return self.look_up(batch)

    def observe(self, batch: NodeBatch, predicted: Tensor) -> None:
        """Add the scores of a trained batch to the metrics."""
        # Without a node that stands in on a rank that has none.
        self.window.update(predicted[: len(batch)], batch.labels[: len(batch)])

    def validates(self, epochs: int) -> bool:
        """Whether to validate after this many epochs: every `gnn.validate_every` epochs and after the last."""
        every = self.config.gnn.validate_every
        return epochs == self.config.train.epochs or bool(every and epochs % every == 0)

    def validate(self) -> dict[str, float | None]:
        """Metrics on the validation nodes, with names such as `valid_accuracy`; keeps the model if it is the best."""
        figures = self._measure(self.model.network, self.split.valid)
        if self.config.gnn.choose == "best":
            self.model.consider(figures["auc" if "auc" in figures else "accuracy"])
        else:
            self.model.consider(None)
        return {f"valid_{key}": value for key, value in figures.items()}

    def test(self) -> dict[str, float | None]:
        """Metrics of the chosen model on the test nodes."""
        return self._measure(self.model.best, self.split.test)

    def described(self) -> dict[str, Any]:
        """Empty: only click models can be exported."""
        return {}

    def about(self) -> dict[str, Any]:
        """Sizes of the graph and of its split, for the report."""
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

    @torch.no_grad()
    def _measure(self, network: nn.Module, nodes: NDArray[np.int64]) -> dict[str, float | None]:
        """Metrics on some nodes. Each call draws the same samples."""
        metrics = self._metrics()
        network.eval()
        for batch in self._announced(
            batches_to_test(self.config, self.graph, nodes, part=self._part)
        ):
            scores = network(self._vectors(batch), batch.blocks)
            metrics.update(scores[: len(batch)], batch.labels[: len(batch)])
        network.train()
        return metrics.compute()

    def _metrics(self) -> NodeMetrics | NodeMetricsOfAllRanks:
        return NodeMetrics()

    def _announced(self, batches: Iterator[NodeBatch]) -> Iterator[NodeBatch]:
        """The batches to test, whose rows are prefetched."""
        return announced(
            batches, lambda batch, steps: self.lookahead(batch, steps=steps), self.config.store
        )

    def _vectors(self, batch: NodeBatch) -> Tensor:
        """The vectors of the nodes of a batch to test."""
        with self.rows.store.forward():
            return self.table.get(batch.nodes)


@contextmanager
def open_nodes(config: Config, console: Console, threads: int) -> Generator[NodeTask]:
    """Read or generate the graph, open the store and build the task of the settings."""
    graph = read_graph(config, console)
    split = split_of(config, graph)
    identity = node_identity(config, graph, split)
    change, nodes = change_of(config, graph, identity)
    sizes = {"features": nodes, "nodes": nodes}
    with open_rows(config, threads=threads, identity=identity, sizes=sizes) as store:
        table = node_table(store, config, graph, nodes)
        if has_feature_rows(config, graph) and (change is not None or len(table) < graph.nodes):
            fill(table, graph, config)
        yield NodeTask(config, graph, split, StoredRows(store, [table], console), identity, change)


def change_of(
    config: Config, graph: NodeGraph, identity: dict[str, Any]
) -> tuple[NewGraph | None, int]:
    """The change of a run that is continued with this graph, if the graph is new, and the number of nodes of the run.

    Raises:
        ConfigError: The graph has fewer nodes than the run: numbers of nodes stay.
    """
    found = saved_run(config) if config.train.continues else None
    if found is None:
        return None, graph.nodes
    before = found.identity.get("nodes", 0)
    is_current = found.identity.get(CHECKSUM) == identity[CHECKSUM]
    if is_current or numbered(found.state.parts, identity) is not None:
        return None, before
    if graph.nodes < before:
        raise ConfigError(
            f"cannot continue: {config.data.path} has {graph.nodes:,} nodes, but the run has {before:,}. Nodes keep their "
            "numbers and new ones follow: pass the graph with all nodes so far"
        )
    return NewGraph(before, graph.nodes), graph.nodes


def check_splits(config: Config, console: Console) -> None:
    """Raise `DataError` if a split of the settings does not exist, before the first run starts."""
    graph = read_graph(config, console)
    for number in range(config.gnn.split, config.gnn.split + config.gnn.splits):
        split_of(config, graph, number)


def batches_to_train(
    config: Config,
    graph: NodeGraph,
    nodes: NDArray[np.int64],
    *,
    part: tuple[int, int | None] = (0, None),
) -> NodeBatches:
    """Nodes with sampled neighbours, as they are trained on. `part`: as for `batches_to_test`."""
    settings = config.gnn
    return _batches_of(
        config,
        graph,
        nodes,
        settings.fanouts,
        config.train.batch,
        replace=settings.replace,
        part=part,
    )


def batches_to_test(
    config: Config,
    graph: NodeGraph,
    nodes: NDArray[np.int64],
    *,
    batch: int | None = None,
    part: tuple[int, int | None] = (0, None),
) -> Iterator[NodeBatch]:
    """Nodes with their neighbours, as they are tested; each call draws the same samples.

    `batch`: nodes at once. `part`: rank and number of ranks, for the part of one rank of every batch.
    """
    settings = config.gnn
    fanouts = settings.test_fanouts or (-1,) * len(settings.fanouts)
    size = batch or settings.test_batch
    return _batches_of(config, graph, nodes, fanouts, size, replace=False, part=part).in_order()


def _batches_of(
    config: Config,
    graph: NodeGraph,
    nodes: NDArray[np.int64],
    fanouts: tuple[int, ...],
    batch: int,
    *,
    replace: bool,
    part: tuple[int, int | None],
) -> NodeBatches:
    seed, threads = config.train.seed, config.gnn.sample_threads
    rank, ranks = part
    sampler = NeighbourSampler(
        graph.indptr, graph.indices, fanouts=fanouts, replace=replace, seed=seed
    )
    return NodeBatches(
        sampler,
        nodes,
        graph.labels,
        batch=batch,
        seed=seed,
        threads=threads,
        rank=rank,
        ranks=ranks,
    )


def read_graph(config: Config, console: Console) -> NodeGraph:
    """Read the graph of the settings, or generate it."""
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
    return graph_of(config, path)


def graph_of(config: Config, path: Path) -> NodeGraph:
    """The graph in a file, read as the settings say."""
    settings = config.gnn
    graph = read_node_graph(
        path,
        directed=settings.directed,
        self_loops=settings.self_loops,
        isolated=settings.isolated,
    )
    if graph.features is None and settings.rows == "features":
        raise ConfigError(
            f'{path} has no features, which gnn.rows = "features" needs: set gnn.rows = "learned" to learn an embedding of every node'
        )
    return graph


def split_of(config: Config, graph: NodeGraph, number: int | None = None) -> NodeSplit:
    """A split of the nodes, by number; None: the number `gnn.split`."""
    return graph.split(
        config.gnn.split if number is None else number,
        train_per_class=config.gnn.train_per_class,
        valid_per_class=config.gnn.valid_per_class,
    )


def feature_table(store: Store, dim: int, nodes: int, config: Config) -> Table:
    """A table for read-only features of `dim` weights."""
    return store.table(
        "features",
        dim=dim,
        # SGD has no state, so a row holds the features and nothing else.
        optimizer=SGD(lr=0.0),
        dtype=config.rows.dtype,
        staleness_bound=None,
        num_rows=nodes,
    )


def has_feature_rows(config: Config, graph: NodeGraph) -> bool:
    """Whether rows hold the features of nodes, and not learned embeddings."""
    return graph.features is not None and config.gnn.rows == "features"


def node_table(store: Store, config: Config, graph: NodeGraph, nodes: int) -> Table:
    """The table of the rows of nodes."""
    if graph.features is not None and config.gnn.rows == "features":
        return feature_table(store, graph.features.dim, nodes, config)
    return new_table(store, config, "nodes", dim=config.model.dim, num_rows=nodes)


def fill(
    table: Table,
    graph: NodeGraph,
    config: Config,
    kept: Callable[[Tensor], Tensor] = lambda nodes: nodes,
) -> None:
    """Write the features of all nodes, or of those that `kept` returns of some distinct ones."""
    assert graph.features is not None
    for start in range(0, graph.nodes, _FILL_ROWS):
        stop = min(start + _FILL_ROWS, graph.nodes)
        rows = graph.features.rows(start, stop)
        if config.gnn.normalize:
            rows /= np.abs(rows).sum(axis=1, keepdims=True).clip(min=1e-12)
        nodes = kept(torch.arange(start, stop))
        table.put(nodes, rows[nodes.numpy() - start])


def build_network(config: Config, dim: int, classes: int) -> nn.Module:
    """The GraphSAGE or GAT of the settings, for input vectors of `dim` weights."""
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
    """Raise `ConfigError` if two settings contradict each other; the message names both."""
    settings, kind = config.gnn, config.model.kind
    for name in ("fanouts", "test_fanouts"):
        if 0 in getattr(settings, name):
            raise ConfigError(
                f"gnn.{name} has a 0: each entry must be at least 1, or -1 for all neighbours"
            )
    if not settings.fanouts:
        raise ConfigError(
            "gnn.fanouts is empty: give one fan-out per layer of the model, at least one"
        )
    if settings.test_fanouts and len(settings.test_fanouts) != len(settings.fanouts):
        raise ConfigError(
            f"gnn.test_fanouts has {len(settings.test_fanouts)} entries and gnn.fanouts {len(settings.fanouts)}: "
            "give one per layer in both, or leave gnn.test_fanouts empty to use all neighbours"
        )
    if settings.rows == "learned" and settings.choose == "best" and settings.validate_every:
        raise ConfigError(
            'gnn.choose = "best" does not work with gnn.rows = "learned", because embeddings are not copied with the model: set gnn.choose = "last"'
        )
    if settings.rows == "features":
        removed = config.eviction.rule != "none"
        if removed or config.admission.min_count is not None:
            raise ConfigError(
                f'[{"eviction" if removed else "admission"}] works only with gnn.rows = "learned", got "features": remove the section'
            )
    for name, model in {
        "attention_dropout": "gat",
        "norm": "graphsage",
        "residual": "graphsage",
    }.items():
        if getattr(settings, name) and kind != model:
            raise ConfigError(
                f"gnn.{name} works only with model.kind = {model!r}, got {kind!r}: remove gnn.{name}"
            )
