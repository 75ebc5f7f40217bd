"""The product's trainer on the generated graph, with all rows in its store."""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
from rich.console import Console

from benchmarks.gnn_out_of_core.shape import DIM, Shape
from benchmarks.training import LoadedTrainer
from rowmill.config import Config
from rowmill.gnn.node_graph import Features, NodeGraph, NodeSplit
from rowmill.gnn.task import NodeTask, feature_table
from rowmill.train.rows import StoredRows, open_rows
from rowmill.train.run import Trainer

_PUT_ROWS = 65_536


@contextmanager
def training(
    config: Config, shape: Shape, graph: NodeGraph, *, threads: int
) -> Generator[LoadedTrainer]:
    """A trainer with all rows in its store. The most frequent nodes are put last, so they are in memory at the start."""
    with open_rows(config, threads=threads, identity={}) as store:
        table = feature_table(store, DIM, shape.nodes, config)
        for start in reversed(range(0, shape.nodes, _PUT_ROWS)):
            ranks = np.arange(start, min(start + _PUT_ROWS, shape.nodes), dtype=np.uint64)
            table.put(shape.at_ranks(ranks), shape.features(start, len(ranks)))
        few = np.arange(config.train.batch)
        split = NodeSplit(shape.train_nodes(), few, few)
        # All rows are in the store, so the task reads no features.
        graph = replace(graph, features=Features(DIM))
        task = NodeTask(config, graph, split, StoredRows(store, [table], Console(quiet=True)), {})
        trainer = Trainer(config, task)
        with closing(trainer.steps(0)) as steps:
            yield LoadedTrainer(trainer, steps)
