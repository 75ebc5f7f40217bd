"""The same loop over another engine: the same batches, model, loss and optimizer; rows are got and put back."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kge_out_of_core.shape import Shape
from benchmarks.peer_rows import KEYS_MAX, PeerRows
from rowmill.config import RowsConfig
from rowmill.kge import GraphBatch
from rowmill.optim import Adagrad
from rowmill.train.graphs import GraphTask
from rowmill.train.rows import row_optimizer


def load(rows: PeerRows, shape: Shape) -> None:
    """Every row as it may be born."""
    random = np.random.default_rng([shape.seed, 9])
    count, width = shape.entities + 2 * shape.relations, RowsConfig().initial_width
    for start in range(0, count, KEYS_MAX):
        keys = np.arange(start, min(start + KEYS_MAX, count))
        born = np.zeros((len(keys), 2 * shape.dim), np.float32)
        born[:, : shape.dim] = random.uniform(-width, width, (len(keys), shape.dim))
        rows.put(keys, born, "append")
    rows.settle()


class PeerLoop:
    """Training over an engine; its steps go on from one call to the next."""

    def __init__(self, rows: PeerRows, task: GraphTask, shape: Shape, steps: Iterator[Any]) -> None:
        self._rows = rows
        self._task = task
        self._shape = shape
        self._steps = steps
        optimizer = row_optimizer(task.config.rows)
        assert isinstance(optimizer, Adagrad)
        self._optimizer = optimizer

    def warm_up(self, steps: int) -> None:
        """Read the rows of some steps, which are not trained."""
        for batch in islice(self._steps, steps):
            self._rows.get(self._keys(batch))

    def train(self, steps: int) -> int:
        """Train for some steps; the examples that they had."""
        done = 0
        for batch in islice(self._steps, steps):
            self._step(batch)
            done += len(batch)
        return done

    def _step(self, batch: GraphBatch) -> None:
        dim, optimizer = self._shape.dim, self._optimizer
        keys = self._keys(batch)
        rows = torch.from_numpy(self._rows.get(keys).copy())
        weights, squares = rows[:, :dim], rows[:, dim:]
        learned = weights.clone().requires_grad_()
        entities = learned[: len(batch.entities)]
        relations = learned[len(batch.entities) :]
        loss, _ = self._task.loss(batch, (entities, relations))
        loss.backward()
        assert learned.grad is not None
        squares.addcmul_(learned.grad, learned.grad)
        weights.addcdiv_(learned.grad, squares.sqrt().add_(optimizer.eps), value=-optimizer.lr)
        self._rows.put(keys, rows.numpy())

    def _keys(self, batch: GraphBatch) -> NDArray[np.int64]:
        # Relations lie behind the entities.
        relations = batch.relations.numpy() + self._shape.entities
        return np.concatenate([batch.entities.numpy(), relations])
