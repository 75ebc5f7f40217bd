"""The lookups of the first batches of a graph network on many ranks, for `rowmill plan`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rowmill.gnn.task import batches_to_train, node_table, read_graph, split_of
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
    graph = read_graph(config, console)
    split = split_of(config, graph)
    table = node_table(store, config, graph, graph.nodes)
    of_ranks: list[list[RaggedBatch]] = []
    for rank in range(ranks):
        batches = batches_to_train(config, graph, split.train, part=(rank, ranks)).epoch(0, 0)
        of_ranks.append(
            [
                RaggedBatch.from_dense([table.name], batch.nodes[:, None])
                for batch in islice(batches, count)
            ]
        )
    return [Feature(table.name, table)], of_ranks
