"""The same training loop with rows in another engine: same log, model, loss and optimizers."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor

from benchmarks.peer_loop import Keys, PeerLoop, PeerSide, distinct
from benchmarks.peer_rows import PeerRows
from benchmarks.training import Shape
from rowmill.config import Config, RowsConfig
from rowmill.ctr.data import ClickBatch
from rowmill.ctr.data.generate import table_ids
from rowmill.ctr.rows import StoredClickRows
from rowmill.ctr.task import ClickTask, Log, open_clicks
from rowmill.optim import Adagrad
from rowmill.train.rows import row_optimizer


def load(rows: PeerRows, shape: Shape, dim: int) -> None:
    """Insert every row of the log's tables with a random initial value."""
    random = np.random.default_rng([shape.seed, 9])
    width = RowsConfig().initial_width
    tables = [table_ids(shape.log, table).astype(np.uint64) for table in range(shape.tables)]
    keys = np.unique(np.concatenate(tables))
    assert len(keys) == shape.tables * shape.rows_per_table, "two tables have an id in common"
    for start in range(0, len(keys), rows.keys_max):
        part = keys[start : start + rows.keys_max]
        born = np.zeros((len(part), 2 * dim), np.float32)
        born[:, :dim] = random.uniform(-width, width, (len(part), dim))
        rows.put(part, born, "append")
    rows.settle()


class PeerClickTask(ClickTask):
    """The task with rows in a peer. Ids differ between tables, so they are used as keys."""

    def __init__(self, config: Config, log: Log, stored: StoredClickRows, rows: PeerRows) -> None:
        super().__init__(config, log, stored)
        optimizer = row_optimizer(config.rows)
        assert isinstance(optimizer, Adagrad)
        self._side = PeerSide(rows, config.model.dim, optimizer)
        self.rows: Any = self._side

    def lookahead(self, batch: ClickBatch, *, steps: int) -> None:
        """Announce the ids of a batch to the peer."""
        keys, _ = distinct(_keys(batch))
        self._side.announce(keys, steps=steps)

    def look_up(self, batch: ClickBatch) -> Tensor:
        """Read the vectors of a batch from the peer, `[B, F, D]`."""
        keys, positions = distinct(_keys(batch))
        learned = self._side.read(keys)
        return learned[positions].view(*batch.ids.shape, self._side.dim)

    def loss(self, batch: ClickBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of the product's task, on the peer's rows."""
        return super().loss(batch, self.look_up(batch) if rows is None else rows)


def _keys(batch: ClickBatch) -> Keys:
    return batch.ids.numpy().reshape(-1).view(np.uint64)


@contextmanager
def peer_loop(rows: PeerRows, config: Config, threads: int) -> Generator[PeerLoop]:
    """A training loop over an engine that holds the rows; the store in `config` stays empty."""
    console = Console(quiet=True)
    with open_clicks(config, console, threads) as task:
        assert isinstance(task.rows, StoredClickRows)
        yield PeerLoop(rows, PeerClickTask(config, task.log, task.rows, rows))
