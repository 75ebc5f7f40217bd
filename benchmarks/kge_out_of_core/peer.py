"""The same loop over another engine: the same batches, model, loss and optimizer; rows are got and put back.

The engine is a process of its own in a memory group (rowmill-bench, `peer ... rows`), and rows travel over a file
that both have in memory.
"""

import mmap
import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.kge_out_of_core.memory_group import memory_group
from benchmarks.kge_out_of_core.shape import Shape
from rowmill.config import RowsConfig
from rowmill.kge import GraphBatch
from rowmill.optim import Adagrad
from rowmill.train.graphs import GraphTask
from rowmill.train.rows import row_optimizer

PROCESS_BYTES = 256 << 20
"""Beyond the memory that an engine is told to use: its code, and rows on their way."""
_KEYS = 16_384
"""Rows of a request."""


class PeerRows:
    """Rows of an engine, weights and state of Adagrad, by key."""

    def __init__(self, process: "subprocess.Popen[str]", exchange: mmap.mmap, floats: int) -> None:
        self._process = process
        self._keys = np.frombuffer(exchange, np.uint64, _KEYS)
        self._rows = np.frombuffer(exchange, np.float32, _KEYS * floats, 8 * _KEYS)
        self._rows = self._rows.reshape(_KEYS, floats)
        self._answered("ready")

    def get(self, keys: NDArray[np.int64]) -> NDArray[np.float32]:
        """The rows of keys, which are distinct and ascend; what they are until the next request."""
        self._keys[: len(keys)] = keys
        self._ask("get", len(keys))
        return self._rows[: len(keys)]

    def put(self, keys: NDArray[np.int64], rows: NDArray[np.float32], how: str = "put") -> None:
        """Replace rows; `append`: store those behind all others."""
        self._keys[: len(keys)] = keys
        self._rows[: len(keys)] = rows
        self._ask(how, len(keys))

    def settle(self) -> None:
        """Wait until the engine does nothing in the background."""
        self._ask("settle", 0)

    def _ask(self, command: str, count: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command} {count}\n")
        self._process.stdin.flush()
        self._answered("done")

    def _answered(self, expected: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != expected:
            raise RuntimeError(f"the engine ended or said {answer!r}; its last words are above")


@contextmanager
def peer_rows(
    program: Path, kind: str, folder: Path, shape: Shape, *, memory: int, threads: int
) -> Generator[PeerRows]:
    """An engine with every row as it may be born; `threads` of its own read."""
    row_bytes = shape.dim * 2 * 4
    file = os.memfd_create("rows")
    try:
        os.ftruncate(file, _KEYS * (8 + row_bytes))
        options = {
            "folder": folder,
            "row-bytes": row_bytes,
            "memory": memory,
            "batch": _KEYS,
            "peer-threads": threads,
            "exchange": f"/proc/self/fd/{file}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (
            memory_group(kind, memory + PROCESS_BYTES) as group,
            subprocess.Popen(
                group.command([str(program), "peer", kind, "rows", *words]),
                pass_fds=[file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            # Nobody closes the map: arrays that look at it keep it.
            rows = PeerRows(process, mmap.mmap(file, 0), row_bytes // 4)
            _load(rows, shape)
            yield rows
    finally:
        os.close(file)


def _load(rows: PeerRows, shape: Shape) -> None:
    random = np.random.default_rng([shape.seed, 9])
    count, width = shape.entities + 2 * shape.relations, RowsConfig().initial_width
    for start in range(0, count, _KEYS):
        keys = np.arange(start, min(start + _KEYS, count))
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
