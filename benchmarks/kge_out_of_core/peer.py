"""The same training loop with rows in another engine: same batches, model, loss and optimizer."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from torch import Tensor

from benchmarks.kge_out_of_core.shape import Shape
from benchmarks.peer_loop import Keys, PeerLoop, PeerSide
from benchmarks.peer_rows import PeerRows
from rowmill.config import Config, RowsConfig, StoreConfig
from rowmill.kge import GraphBatch, GraphBatches
from rowmill.kge.graph import Graph
from rowmill.kge.task import GraphTask, graph_tables
from rowmill.optim import Adagrad
from rowmill.store import Store
from rowmill.train.rows import StoredRows, open_rows, row_optimizer


def load(rows: PeerRows, shape: Shape) -> None:
    """Insert every row with its initial value."""
    random = np.random.default_rng([shape.seed, 9])
    count, width = rows_of(shape), RowsConfig().initial_width
    for start in range(0, count, rows.keys_max):
        keys = np.arange(start, min(start + rows.keys_max, count))
        born = np.zeros((len(keys), 2 * shape.dim), np.float32)
        born[:, : shape.dim] = random.uniform(-width, width, (len(keys), shape.dim))
        rows.put(keys, born, "append")
    rows.settle()


def rows_of(shape: Shape) -> int:
    """Number of rows: entities, followed by relations in both directions."""
    return shape.entities + 2 * shape.relations


class PeerGraphTask(GraphTask):
    """The task with rows in a peer. Its own store only holds the rows of the small graph in `config`."""

    def __init__(
        self, config: Config, tiny: Graph, store: Store, shape: Shape, graph: Graph, rows: PeerRows
    ) -> None:
        stored = StoredRows(store, graph_tables(store, config, tiny), Console(quiet=True))
        large = GraphBatches(graph, config.kge, batch=config.train.batch, seed=shape.seed)
        super().__init__(config, tiny, stored, large, {})
        optimizer = row_optimizer(config.rows)
        assert isinstance(optimizer, Adagrad)
        self._shape = shape
        self._side = PeerSide(rows, shape.dim, optimizer)
        self.rows: Any = self._side

    def lookahead(self, batch: GraphBatch, *, steps: int) -> None:
        """Announce entities and relations to the peer."""
        self._side.announce(self._keys(batch), steps=steps)

    def look_up(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Read the rows of a batch's entities and relations from the peer."""
        learned = self._side.read(self._keys(batch))
        count = len(batch.entities)
        return learned[:count], learned[count:]

    def _keys(self, batch: GraphBatch) -> Keys:
        relations = batch.relations.numpy() + self._shape.entities
        return np.concatenate([batch.entities.numpy(), relations]).astype(np.uint64)


@contextmanager
def peer_loop(
    rows: PeerRows,
    shape: Shape,
    graph: Graph,
    out: Path,
    *,
    partitioned: bool,
    lookahead: int,
    threads: int,
) -> Generator[PeerLoop]:
    """A training loop over an engine that holds the rows."""
    # A graph with three entities per partition has the same settings and model.
    tiny = replace(shape, entities=3 * shape.partitions)
    store_config = StoreConfig(memory="64MiB", lookahead=lookahead)
    config = tiny.config(out, partitioned=partitioned, store=store_config, threads=threads)
    with open_rows(config, threads=1, identity={}) as store:
        yield PeerLoop(rows, PeerGraphTask(config, tiny.graph(), store, shape, graph, rows))
