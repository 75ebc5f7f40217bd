"""The same training loop with features in another engine: same samples, model, loss and optimizer."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from benchmarks.gnn_out_of_core.shape import DIM, FANOUTS, Shape
from benchmarks.peer_loop import PeerLoop, PeerSide
from benchmarks.peer_rows import PeerRows
from rowmill.config import Config, StoreConfig
from rowmill.gnn import NeighbourSampler, NodeBatch, NodeBatches
from rowmill.gnn.node_graph import Features, NodeGraph, NodeSplit
from rowmill.gnn.task import NodeTask, fill, node_table
from rowmill.store import Store
from rowmill.train.rows import StoredRows, open_rows


def load(rows: PeerRows, shape: Shape) -> None:
    """Write the features of every node, keyed by node number."""
    for start in range(0, shape.nodes, rows.keys_max):
        keys = np.arange(start, min(start + rows.keys_max, shape.nodes))
        rows.put(keys, shape.features(start, len(keys)), "append")
    rows.settle()


class PeerNodeTask(NodeTask):
    """The task with rows in a peer. Its own store only holds the rows of the small graph in `config`."""

    def __init__(
        self,
        config: Config,
        tiny: NodeGraph,
        store: Store,
        shape: Shape,
        graph: NodeGraph,
        rows: PeerRows,
    ) -> None:
        nodes = np.arange(tiny.nodes)
        split = NodeSplit(nodes, nodes, nodes)
        table = node_table(store, config, tiny, tiny.nodes)
        if len(table) < tiny.nodes:
            fill(table, tiny, config)
        stored = StoredRows(store, [table], Console(quiet=True))
        super().__init__(config, tiny, split, stored, {})
        self._side = PeerSide(rows, DIM, None)
        self.rows: Any = self._side
        sampler = NeighbourSampler(graph.indptr, graph.indices, fanouts=FANOUTS, seed=shape.seed)
        self._large = NodeBatches(
            sampler, shape.train_nodes(), graph.labels, batch=shape.batch, seed=shape.seed
        )
        self.train_rows = len(self._large)

    def batches(self, epoch: int, start: int) -> Iterator[NodeBatch]:
        """The batches of the large graph."""
        return self._large.epoch(epoch, start)

    def lookahead(self, batch: NodeBatch, *, steps: int) -> None:
        """Announce the nodes of a sample to the peer."""
        self._side.announce(batch.nodes.numpy().astype(np.uint64), steps=steps)

    def look_up(self, batch: NodeBatch) -> Tensor:
        """Read the features of a sample's nodes from the peer."""
        nodes = batch.nodes.numpy()
        order = np.argsort(nodes)
        vectors = torch.empty((len(nodes), DIM))
        vectors[torch.from_numpy(order)] = self._side.read(nodes[order].astype(np.uint64))
        return vectors

    def loss(self, batch: NodeBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of the product's task, on the peer's features."""
        return super().loss(batch, self.look_up(batch) if rows is None else rows)


@contextmanager
def peer_loop(
    rows: PeerRows, shape: Shape, graph: NodeGraph, folder: Path, *, lookahead: int, threads: int
) -> Generator[PeerLoop]:
    """A training loop over an engine that holds the features."""
    # A small graph gives a model of the same size.
    tiny = replace(shape, bits=12)
    store_config = StoreConfig(memory="64MiB", lookahead=lookahead)
    config = tiny.config(folder, store=store_config, threads=threads)
    with open_rows(config, threads=1, identity={}) as store:
        features = Features(DIM, dense=tiny.features(0, tiny.nodes))
        tiny_graph = replace(tiny.graph(folder), features=features)
        yield PeerLoop(rows, PeerNodeTask(config, tiny_graph, store, shape, graph, rows))
