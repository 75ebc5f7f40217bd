"""A trained graph neural network, read with its graph: scores and metrics of nodes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill.errors import DataError, InvalidInput
from rowmill.gnn.metrics import NodeMetrics
from rowmill.gnn.task import ChosenModel, batches_to_test, build_network, graph_of, split_of
from rowmill.nn import load_dense_state_dict
from rowmill.saved.loaded_run import LoadedRun, Scored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from rowmill.gnn.node_batch import NodeBatch
    from rowmill.gnn.node_graph import NodeGraph
    from rowmill.gnn.sampler import Block
    from rowmill.saved.saved_run import SavedRun


class LoadedNodes(LoadedRun):
    """A graph neural network. `transform` takes distinct node numbers, as int64 tensor, array or sequence.

    `scored` and `evaluate` take the graph of the run, an `.npz` file. Part "all" is every node; the other parts are those of the
    split of the run. Columns of the scores: `node`, `predicted` (the class with the highest score) and `scores` (one per
    class). For parts "valid" and "test" the batches equal those of the trainer.

    The graph is read when it is first needed: `tables` are there without it. `model` is the network that the trainer tests:
    with `gnn.choose = "best"` the best one so far on validation nodes; otherwise, or before the first validation, the last one.
    It is called as `model(vectors, blocks)`.
    """

    parts = ("all", "train", "valid", "test")

    def __init__(self, saved: SavedRun, data: Path | None = None) -> None:
        super().__init__(saved)
        self._path = data or self.config.data.path
        (self._table,) = self.tables.values()

    @property
    def model(self) -> nn.Module:
        """The network; see the class. Raises `DataError` if the graph is missing or differs."""
        return self._model

    @cached_property
    def graph(self) -> NodeGraph:
        """The graph of the run; raises `DataError` if it is missing or differs."""
        path = self._path
        if path is None or not path.exists():
            raise DataError(
                f"the graph of the run, {path}, does not exist, and scores of nodes need it: restore it, or pass its new path "
                "now with --graph (data= of rowmill.load)"
            )
        return self._checked(path)

    def transform(self, raw: Any) -> tuple[Tensor, tuple[Block, ...]]:
        """The vectors of nodes and their sampled neighbours, float32 `[N, D]`, and the blocks of edges."""
        nodes = self._nodes(raw)
        if len(nodes) == 0:
            raise InvalidInput("nodes is empty: give at least one node number")
        (batch,) = batches_to_test(self.config, self.graph, nodes, batch=len(nodes))
        return self._table.get(batch.nodes), batch.blocks

    @torch.no_grad()
    def predict(self, raw: Any) -> Tensor:
        """Scores of every class, float32 `[n, classes]`, in batches of `gnn.test_batch`."""
        nodes = self._nodes(raw)
        found = [self._score(batch) for batch in batches_to_test(self.config, self.graph, nodes)]
        return torch.cat([torch.empty(0, self.graph.classes), *found])

    @torch.no_grad()
    def scored(self, data: Path, part: str | None = None) -> Iterator[Scored]:
        """Scores of nodes; see the class."""
        self._take_graph(data)
        nodes = self._part(self.chosen_part(part, "all"))
        first = 0
        for batch in batches_to_test(self.config, self.graph, nodes):
            scores = self._score(batch).numpy()
            of_batch = nodes[first : batch.stop]
            first = batch.stop
            columns = {"node": of_batch, "predicted": scores.argmax(1), "scores": scores}
            yield Scored(scores, columns)

    @torch.no_grad()
    def evaluate(self, data: Path, part: str | None = None) -> dict[str, float | None]:
        """Loss and accuracy, and with two classes the AUC."""
        self._take_graph(data)
        metrics = NodeMetrics()
        nodes = self._part(self.chosen_part(part, "test"))
        for batch in batches_to_test(self.config, self.graph, nodes):
            metrics.update(self._score(batch), batch.labels)
        return metrics.compute()

    def _score(self, batch: NodeBatch) -> Tensor:
        vectors = self._table.get(batch.nodes)
        with self.threads():
            return self.model(vectors, batch.blocks)

    @cached_property
    def _model(self) -> nn.Module:
        chosen = ChosenModel(build_network(self.config, self._table.dim, self.graph.classes))
        load_dense_state_dict(chosen, self.saved.weights)
        validated = any("valid_accuracy" in point for point in self.saved.state.curve)
        is_best = self.config.gnn.choose == "best" and validated
        return (chosen.best if is_best else chosen.network).eval()

    def _take_graph(self, path: Path) -> None:
        """Take the graph of a file, which must be that of the run."""
        if "graph" in self.__dict__ and self.graph.path != path:
            self._checked(path)
        self._path = path

    def _checked(self, path: Path) -> NodeGraph:
        graph = graph_of(self.config, path)
        if graph.fingerprint() != self.saved.identity["checksum of the graph"]:
            raise DataError(
                f"{path} is not the graph that {self.folder} was trained on: its arrays have another checksum, and rows are "
                "those of its nodes. Pass the graph of the run"
            )
        return graph

    def _part(self, part: str) -> NDArray[np.int64]:
        if part == "all":
            return np.arange(self.graph.nodes)
        return getattr(split_of(self.config, self.graph), part)

    def _nodes(self, raw: Any) -> NDArray[np.int64]:
        nodes = raw.numpy() if isinstance(raw, torch.Tensor) else np.asarray(raw, order="C")
        nodes = nodes if nodes.size else nodes.astype(np.int64)
        if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
            raise InvalidInput(
                f"nodes must be integers [n], got {nodes.dtype} of shape {list(nodes.shape)}"
            )
        count = self.graph.nodes
        wrong = nodes[(nodes < 0) | (nodes >= count)]
        if len(wrong):
            raise InvalidInput(f"nodes must be in [0, {count}), got {wrong[0]}")
        if len(np.unique(nodes)) < len(nodes):
            raise InvalidInput("nodes must be distinct: drop repeated ones")
        return np.ascontiguousarray(nodes, np.int64)
