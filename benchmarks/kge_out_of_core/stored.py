"""The product's trainer on the generated graph, with all rows in its store."""

from collections.abc import Generator
from contextlib import closing, contextmanager

from rich.console import Console

from benchmarks.kge_out_of_core.shape import Shape
from benchmarks.training import LoadedTrainer
from rowmill.config import Config
from rowmill.kge import GraphBatches
from rowmill.kge.graph import Graph
from rowmill.kge.task import GraphTask, graph_tables
from rowmill.store import Store
from rowmill.train.rows import StoredRows, open_rows
from rowmill.train.run import Trainer

_PUT_ROWS = 65_536


def task_of(config: Config, graph: Graph, store: Store) -> GraphTask:
    """The task over the rows of a store."""
    rows = StoredRows(store, graph_tables(store, config, graph), Console(quiet=True))
    batches = GraphBatches(graph, config.kge, batch=config.train.batch, seed=config.train.seed)
    return GraphTask(config, graph, rows, batches, {})


@contextmanager
def filled(config: Config, shape: Shape, graph: Graph, *, threads: int) -> Generator[Store]:
    """A store with all rows at their initial values. The most frequent entities are put last, so they are in memory."""
    with open_rows(config, threads=threads, identity={}) as store:
        task = task_of(config, graph, store)
        for start in reversed(range(0, shape.entities, _PUT_ROWS)):
            ids = shape.numbers[start : start + _PUT_ROWS]
            task.entities.put(ids, task.entities.get(ids))
        relations = list(range(2 * shape.relations))
        task.relations.put(relations, task.relations.get(relations))
        yield store


@contextmanager
def training(config: Config, graph: Graph, store: Store) -> Generator[LoadedTrainer]:
    """A trainer over the rows of the store."""
    trainer = Trainer(config, task_of(config, graph, store))
    with closing(trainer.steps(0)) as steps:
        yield LoadedTrainer(trainer, steps)
