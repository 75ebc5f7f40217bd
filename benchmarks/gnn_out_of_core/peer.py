"""The same loop over another engine: the same samples, model, loss and optimizer; features are got from the engine."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

from benchmarks.gnn_out_of_core.shape import Shape
from benchmarks.peer_rows import PeerRows
from rowmill.gnn import NodeBatch
from rowmill.train.nodes import NodeTask


def load(rows: PeerRows, shape: Shape) -> None:
    """Every node's features, by number."""
    for start in range(0, shape.nodes, rows.keys_max):
        keys = np.arange(start, min(start + rows.keys_max, shape.nodes))
        rows.put(keys, shape.features(start, len(keys)), "append")
    rows.settle()


class PeerLoop:
    """Training over an engine; its steps go on from one call to the next."""

    def __init__(self, rows: PeerRows, task: NodeTask, steps: Iterator[NodeBatch]) -> None:
        self._rows = rows
        self._task = task
        self._steps = steps

    def train(self, steps: int) -> int:
        """Train for some steps; the examples that they had."""
        done = 0
        for batch in islice(self._steps, steps):
            nodes = batch.nodes.numpy()
            order = np.argsort(nodes)
            vectors = np.empty((len(nodes), self._task.table.dim), np.float32)
            vectors[order] = self._rows.get(nodes[order])
            loss, _ = self._task.loss(batch, torch.from_numpy(vectors))
            self._task.optimizer.zero_grad()
            loss.backward()
            self._task.optimizer.step()
            done += len(batch)
        return done
