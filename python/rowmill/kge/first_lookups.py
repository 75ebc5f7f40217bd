"""The lookups of the first batches of a knowledge graph on many ranks, for `rowmill plan`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rowmill.kge.graph_batch import GraphBatches
from rowmill.kge.task import check_graph_settings, graph_of, graph_tables
from rowmill.nn import Feature
from rowmill.nn.ragged import RaggedBatch

if TYPE_CHECKING:
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.store.store import Store


def first_lookups(
    config: Config, store: Store, console: Console, *, ranks: int, count: int
) -> tuple[list[Feature], list[list[RaggedBatch]]]:
    """The features, with tables in `store`, and what each rank looks up in its first `count` batches."""
    check_graph_settings(config)
    graph, _, _ = graph_of(config, None)
    features = [Feature(table.name, table) for table in graph_tables(store, config, graph)]
    names = [feature.name for feature in features]
    of_ranks: list[list[RaggedBatch]] = []
    for rank in range(ranks):
        batches = GraphBatches(
            graph,
            config.kge,
            batch=config.train.batch,
            seed=config.train.seed,
            rank=rank,
            ranks=ranks,
        )
        of_ranks.append(
            [
                RaggedBatch.from_single_ids(
                    dict(zip(names, (batch.entities, batch.relations), strict=True))
                )
                for batch in islice(batches.epoch(0, 0), count)
            ]
        )
    return features, of_ranks
