"""The task `gnn` on many ranks: every rank trains and tests on a part of each batch.

Each rank reads the whole graph, and samples neighbours for its nodes. They depend on the seed, the batch of all ranks, the
layer and the node, so the samples of all ranks are those of one process. The rows of nodes are sharded over the stores of
the ranks; the dense half is replicated, and its gradients are summed. Dropout is drawn by node. So all numbers of ranks take
the same steps, up to the order of sums; without dropout those of one process too, which draws it by position.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.nn.functional import cross_entropy

from rowmill.config.setting import ConfigError
from rowmill.gnn.identity import node_identity
from rowmill.gnn.metrics import NodeMetricsOfAllRanks
from rowmill.gnn.task import (
    NodeTask,
    change_of,
    fill,
    has_feature_rows,
    node_table,
    read_graph,
    split_of,
)
from rowmill.nn import Feature
from rowmill.nn.ragged import RaggedBatch
from rowmill.train.on_ranks import check_ranked, on_ranks, on_wire
from rowmill.train.ranked_rows import RankedRows, open_ranked_store

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.distributed import Checkpoint
    from rowmill.distributed.collection import Prepared
    from rowmill.gnn import NodeBatch
    from rowmill.gnn.node_graph import NodeGraph, NodeSplit
    from rowmill.gnn.task import NewGraph
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.train.on_ranks import OnRanks


class RankedNodeRows(RankedRows):
    """Features or embeddings of nodes, in the stores of all ranks."""

    equal_streams = True

    def __init__(
        self,
        config: Config,
        store: Store,
        table: Table,
        console: Console,
        *,
        here: OnRanks,
        checkpoint: Checkpoint,
        trained: bool,
    ) -> None:
        super().__init__(
            config,
            store,
            [table],
            [Feature(table.name, table)],
            console,
            here=here,
            checkpoint=checkpoint,
        )
        self.ranks = here.ranks
        # Rows that are not trained are read without clocks, and get no gradients.
        self.collection.frozen = not trained

    def ids_of(self, batch: NodeBatch) -> RaggedBatch:
        """The nodes of this rank's part of a batch, with their neighbours."""
        return RaggedBatch.from_dense([self.tables[0].name], batch.nodes[:, None])

    def vectors(self, prepared: Prepared) -> Tensor:
        """The vectors of a batch that the pipeline has prepared. A collective."""
        if not self.collection.frozen:
            return self.collection(prepared)
        # Announced rows are held until a step begins, and a read is none.
        with self.store.forward():
            return self.collection(prepared)


class RankedNodeTask(NodeTask):
    """A graph and the model that is trained to classify its nodes, on many ranks."""

    rows: RankedNodeRows

    def __init__(
        self,
        config: Config,
        graph: NodeGraph,
        split: NodeSplit,
        rows: RankedNodeRows,
        identity: dict[str, Any],
        change: NewGraph | None = None,
    ) -> None:
        ranks = rows.ranks
        super().__init__(
            config, graph, split, rows, identity, change, rank=ranks.rank, ranks=ranks.count
        )
        self.window = self._metrics()
        # Sum gradients in the order of ranks, so that a resumed run is bit-identical to an uninterrupted one.
        self._parallel = ranks.data_parallel(self.model.network, repeatable=True)

    def lookahead(self, batch: NodeBatch, *, steps: int) -> None:
        """Does nothing: the pipeline tells the owners of the rows which nodes are coming."""

    def loss(self, batch: NodeBatch, rows: Any) -> tuple[Tensor, Tensor]:
        """This rank's share of the loss, and the scores of its nodes. `rows` is the pipeline's prepared lookup."""
        scores = self._parallel(self.rows.vectors(rows), batch.blocks, batch.nodes)
        return cross_entropy(scores, batch.labels) * batch.share, scores

    def observe(self, batch: NodeBatch, predicted: Tensor) -> None:
        """Add the scores of this rank's nodes to the metrics."""
        super().observe(batch, predicted)
        self.window.rows += batch.examples

    def _metrics(self) -> NodeMetricsOfAllRanks:
        return NodeMetricsOfAllRanks(self.rows.ranks)

    def _announced(self, batches: Iterator[NodeBatch]) -> Iterator[NodeBatch]:
        return batches

    def _vectors(self, batch: NodeBatch) -> Tensor:
        return self.rows.collection(self.rows.ids_of(batch))


@dataclass(frozen=True)
class _Data:
    """The graph of a run, with its split and identity, what is new about it, and the number of nodes that have rows."""

    graph: NodeGraph
    split: NodeSplit
    identity: dict[str, Any]
    change: NewGraph | None
    nodes: int


@contextmanager
def open_ranked_nodes(config: Config, console: Console, threads: int) -> Generator[RankedNodeTask]:
    """Open the task of the settings on this rank of torchrun, with its store."""
    check_ranked_nodes(config)
    with on_ranks(config) as here:
        named, ranks = here.config, here.ranks

        def read() -> tuple[_Data, dict[str, Any]]:
            graph = read_graph(named, console)
            split = split_of(named, graph)
            identity = node_identity(named, graph, split) | on_wire(named)
            change, nodes = change_of(named, graph, identity)
            return _Data(graph, split, identity, change, nodes), identity

        data = here.agree_on_data(read)
        graph, identity = data.graph, data.identity
        sizes = {"features": data.nodes, "nodes": data.nodes}
        with open_ranked_store(named, here, threads=threads, identity=identity, sizes=sizes) as (
            store,
            checkpoint,
        ):
            table = node_table(store, named, graph, data.nodes)
            has_features = has_feature_rows(named, graph)
            rows = RankedNodeRows(
                named,
                store,
                table,
                console,
                here=here,
                checkpoint=checkpoint,
                trained=not has_features,
            )
            if has_features and (data.change is not None or checkpoint.number == 0):

                def write() -> tuple[tuple[()], dict[str, Any]]:
                    fill(table, graph, named, lambda nodes: rows.collection.kept_here(table, nodes))
                    return (), {}

                ranks.agree(write, "the features")
            here.folder.begin(console)
            yield RankedNodeTask(named, graph, data.split, rows, identity, data.change)


def check_ranked_nodes(config: Config) -> None:
    """Raise `ConfigError` for a setting that only a run of one process supports; it names the setting."""
    check_ranked(config, {})
    if config.train.backend == "nccl":
        raise ConfigError(
            "train.backend = 'nccl' does not work with --task gnn, whose dense layers run on the CPU: use gloo or oneccl"
        )
