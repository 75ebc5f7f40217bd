"""The task `kge` on many ranks: every rank trains on a part of each batch, and ranks a part of the triples.

Each rank reads the whole graph. The rows of entities and relations are sharded over the stores of the ranks. The order of
triples, negatives and dropout are functions of the seed and the position in the batch of all ranks. So N ranks take the
steps of one process, up to the order of sums.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from rowmill.kge.ranking import AnswerRanks
from rowmill.kge.saved_names import SavedNames, put_reciprocals, take_reciprocals
from rowmill.kge.task import (
    GraphTask,
    LossWindow,
    check_graph_settings,
    graph_of,
    graph_tables,
    table_sizes,
)
from rowmill.nn import Feature
from rowmill.nn.ragged import RaggedBatch
from rowmill.train.on_ranks import check_ranked, on_ranks, on_wire
from rowmill.train.ranked_rows import RankedRows, open_ranked_store

if TYPE_CHECKING:
    from collections.abc import Generator

    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.distributed import Checkpoint, Ranks
    from rowmill.kge import GraphBatch, GraphBatches
    from rowmill.kge.graph import Graph
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.train.on_ranks import OnRanks


class RankedGraphRows(RankedRows):
    """Entities and relations in the stores of all ranks."""

    equal_streams = True

    def __init__(
        self,
        config: Config,
        store: Store,
        tables: list[Table],
        console: Console,
        *,
        here: OnRanks,
        checkpoint: Checkpoint,
    ) -> None:
        features = [Feature(table.name, table) for table in tables]
        super().__init__(config, store, tables, features, console, here=here, checkpoint=checkpoint)
        self.ranks = here.ranks

    def ids_of(self, batch: GraphBatch) -> RaggedBatch:
        """The entities and relations of this rank's part of a batch."""
        return self._asked(batch.entities, batch.relations)

    def rows_of(self, vectors: Tensor, entities: int, relations: int) -> tuple[Tensor, Tensor]:
        """The first rows of a result of `collection`: those of this many entities, and of this many relations."""
        of_entities, of_relations = self.collection.split(vectors).values()
        return of_entities[:entities], of_relations[:relations]

    def get(self, entities: Tensor, relations: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of entities and relations, each `[n]`. A collective."""
        found = self.collection(self._asked(entities, relations))
        return self.rows_of(found, len(entities), len(relations))

    def move_reciprocals(self, before: int, after: int) -> None:
        """Move the rows of reciprocal relations to their new numbers, after relations were added. A collective."""
        _, relations = self.tables
        of_ranks = self.ranks.gather(take_reciprocals(relations, before))
        ids, weights, state = (np.concatenate(of_all) for of_all in zip(*of_ranks, strict=True))
        # All ranks have the rows of a replicated table.
        ids, first = np.unique(ids, return_index=True)
        moved_by = after - before
        here = self.collection.kept_here(relations, torch.from_numpy(ids + moved_by)).numpy()
        mine = np.isin(ids + moved_by, here)
        kept = first[mine]
        put_reciprocals(relations, ids[mine], weights[kept], state[kept], moved_by=moved_by)

    def _asked(self, entities: Tensor, relations: Tensor) -> RaggedBatch:
        names = [table.name for table in self.tables]
        return RaggedBatch.from_single_ids(dict(zip(names, (entities, relations), strict=True)))


class _Lookup(nn.Module):
    """Looks up entities or relations alone, for evaluation. Each call is a collective."""

    def __init__(self, rows: RankedGraphRows, place: int) -> None:
        super().__init__()
        self._rows = rows
        self._place = place
        self.embedding_dim = rows.tables[place].dim

    def forward(self, ids: Tensor) -> Tensor:
        """The rows `[*ids.shape, dim]`."""
        asked = [ids.new_empty(0), ids.new_empty(0)]
        asked[self._place] = ids.flatten()
        return self._rows.get(*asked)[self._place].reshape(*ids.shape, -1)


class LossOfAllRanks(LossWindow):
    """The mean loss per example over all ranks. `compute` is a collective.

    `update` takes this rank's share of the loss of a batch, and the examples of all ranks.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def compute(self) -> dict[str, float | None]:
        """`{"loss": mean}`; the mean is None before the first example."""
        share = super().compute()["loss"]
        return {"loss": None if share is None else sum(self._ranks.gather(share))}


class RankedGraphTask(GraphTask):
    """A knowledge graph and the model that is trained on it, on many ranks."""

    rows: RankedGraphRows

    def __init__(
        self,
        config: Config,
        graph: Graph,
        rows: RankedGraphRows,
        batches: GraphBatches,
        identity: dict[str, Any],
    ) -> None:
        super().__init__(config, graph, rows, batches, identity)
        # Not a child of both lookups, which would appear twice in the state of the model.
        self.model.add_module("embeddings", rows.collection)
        self.window = LossOfAllRanks(rows.ranks)

    def lookahead(self, batch: GraphBatch, *, steps: int) -> None:
        """Does nothing: the pipeline tells the owners of the rows which ids are coming."""

    def loss(self, batch: GraphBatch, rows: Any) -> tuple[Tensor, float]:
        """This rank's share of the loss, with and without penalties. `rows` is the pipeline's prepared lookup."""
        assert batch.part is not None
        vectors = self.rows.collection(rows)
        found = self.rows.rows_of(vectors, len(batch.entities), len(batch.relations))
        loss, shown = super().loss(batch, found)
        return loss * batch.part.share, shown * batch.part.share

    def _lookups(self) -> tuple[nn.Module, nn.Module]:
        return _Lookup(self.rows, 0), _Lookup(self.rows, 1)

    def _ranked_here(self, triples: NDArray[Any]) -> NDArray[Any]:
        ranks = self.rows.ranks
        count = -(-len(triples) // ranks.count)
        # Lookups are collectives, so all ranks make equally many: the last ones repeat a triple.
        places = np.arange(count) + count * ranks.rank
        return triples[places.clip(max=len(triples) - 1)]

    def _rank(self, triples: NDArray[Any]) -> dict[str, float | None]:
        mine = self._ranks_of(self._ranked_here(triples))
        found = self.rows.ranks.gather((mine.heads, mine.tails))
        heads, tails = (
            np.concatenate(of_ranks)[: len(triples)] for of_ranks in zip(*found, strict=True)
        )
        return AnswerRanks(heads=heads, tails=tails).figures()


@contextmanager
def open_ranked_graph(config: Config, console: Console, threads: int) -> Generator[RankedGraphTask]:
    """Open the task of the settings on this rank of torchrun, with its store."""
    check_ranked_graph(config)
    with on_ranks(config) as here:
        named, ranks = here.config, here.ranks

        def read() -> tuple[
            tuple[Graph, GraphBatches, dict[str, Any], SavedNames | None], dict[str, Any]
        ]:
            saved = SavedNames.found(named)
            graph, batches, identity = graph_of(named, saved, rank=ranks.rank, ranks=ranks.count)
            identity |= on_wire(named)
            return (graph, batches, identity, saved), identity

        graph, batches, identity, saved = here.agree_on_data(read)
        sizes = table_sizes(named, graph)
        with open_ranked_store(named, here, threads=threads, identity=identity, sizes=sizes) as (
            store,
            checkpoint,
        ):

            def write_names() -> tuple[tuple[()], dict[str, Any]]:
                if ranks.rank == 0:
                    graph.write_names(named.train.out)
                return (), {}

            ranks.agree(write_names, "the names")
            rows = RankedGraphRows(
                named,
                store,
                graph_tables(store, named, graph),
                console,
                here=here,
                checkpoint=checkpoint,
            )
            before, after = None if saved is None else len(saved.relations), graph.relation_count
            if named.kge.reciprocal and before not in (None, after):
                rows.move_reciprocals(before, after)
            here.folder.begin(console)
            yield RankedGraphTask(named, graph, rows, batches, identity)


def check_ranked_graph(config: Config) -> None:
    """Raise `ConfigError` for a setting that does not suit the task, or that only a run of one process supports."""
    on_gpu = f"train.backend = {config.train.backend!r}, which is for models with dense layers,"
    check_ranked(config, {on_gpu: config.train.backend == "nccl"})
    check_graph_settings(config)
