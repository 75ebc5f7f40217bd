"""The tables of a click model, sharded over the ranks of torch.distributed, with one checkpoint of all ranks."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rowmill.ctr.rows import new_tables, pooled_dtype, stored_features
from rowmill.nn.ragged import RaggedBatch
from rowmill.train.ranked_rows import RankedRows, open_ranked_store

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.ctr.data import ClickBatch
    from rowmill.ctr.rows import Columns
    from rowmill.distributed import Checkpoint, ShardedCollection
    from rowmill.distributed.collection import Prepared
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.train.on_ranks import OnRanks


class RankedClickRows(RankedRows):
    """Rows in the stores of all ranks. Every method but `step`, `ids_of` and `inputs` is a collective."""

    def __init__(
        self,
        config: Config,
        store: Store,
        tables: Sequence[Table],
        columns: Columns,
        console: Console,
        *,
        here: OnRanks,
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(
            config,
            store,
            tables,
            stored_features(tables, columns),
            console,
            here=here,
            checkpoint=checkpoint,
            output_dtype=pooled_dtype(config),
            device=here.device,
        )
        self._names = [feature.name for feature in self.collection.features]
        self.embeddings: nn.Module = _Stacked(self.collection, here.device)

    def inputs(self, ids_BS: Tensor) -> RaggedBatch:
        """The ids of this rank's rows as a ragged batch; `ids_BS` is int64 [B, S], one column per feature."""
        return RaggedBatch.from_dense(self._names, ids_BS)

    def ids_of(self, batch: ClickBatch) -> RaggedBatch:
        """The ids of this rank's rows of a batch."""
        return self.inputs(batch.ids)

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Does nothing: the pipeline tells the owners of the rows which ids are coming."""

    def reading(self) -> AbstractContextManager[object]:
        """A context manager that does nothing: evaluation batches are not announced."""
        return nullcontext()


class _Stacked(nn.Module):
    """The `embeddings` of a click model: pools rows on the CPU and moves the vectors to the device of the dense half."""

    def __init__(self, collection: ShardedCollection, device: torch.device) -> None:
        super().__init__()
        self.collection = collection
        self._device = device

    def forward(self, batch: RaggedBatch | Prepared, offsets: None = None) -> Tensor:
        """Pooled vectors [B, S, D] on the device, one per id column."""
        pooled = self.collection(batch).to(self._device)
        return pooled.unflatten(1, (len(self.collection.features), -1))


@contextmanager
def open_ranked_rows(
    config: Config,
    columns: Columns,
    *,
    here: OnRanks,
    sizes: Mapping[str, int | None],
    threads: int,
    identity: dict[str, Any],
    console: Console,
) -> Generator[RankedClickRows]:
    """Open the store of this rank, with one table per id feature, of these sizes by name.

    To resume, the checkpoint in the folder must belong to a run with this identity.
    """
    with open_ranked_store(config, here, threads=threads, identity=identity, sizes=sizes) as (
        store,
        checkpoint,
    ):
        tables = new_tables(store, config, sizes)
        yield RankedClickRows(
            config, store, tables, columns, console, here=here, checkpoint=checkpoint
        )
