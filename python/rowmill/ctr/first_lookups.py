"""The lookups of the first batches of a click model on many ranks, for `rowmill plan`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rowmill.ctr.data import batches
from rowmill.ctr.rows import Columns, new_tables, stored_features
from rowmill.ctr.task import Log
from rowmill.nn.ragged import RaggedBatch

if TYPE_CHECKING:
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.nn import Feature
    from rowmill.store.store import Store


def first_lookups(
    config: Config, store: Store, console: Console, *, ranks: int, count: int
) -> tuple[list[Feature], list[list[RaggedBatch]]]:
    """The features, with tables in `store`, and what each rank looks up in its first `count` batches."""
    log = Log.open(config, console)
    columns = Columns.of(log.source.schema, log.way)
    features = stored_features(new_tables(store, config, log.sizes), columns)
    names = [feature.name for feature in features]
    of_ranks: list[list[RaggedBatch]] = [[] for _ in range(ranks)]
    stream = batches(log.source, log.way, start=0, stop=log.train_rows, batch=config.train.batch)
    for whole in islice(stream, count):
        for rank, of_rank in enumerate(of_ranks):
            rows = slice(len(whole) * rank // ranks, len(whole) * (rank + 1) // ranks)
            of_rank.append(RaggedBatch.from_dense(names, whole.ids[rows]))
    return features, of_ranks
