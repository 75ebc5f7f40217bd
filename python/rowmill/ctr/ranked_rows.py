"""The tables of a click model, sharded over the ranks of torch.distributed, with one checkpoint of all ranks."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rowmill.ctr.rows import new_tables, pooled_dtype, stored_features
from rowmill.distributed import Checkpoint, Pipeline, ShardedCollection
from rowmill.nn.ragged import RaggedBatch
from rowmill.train.backend import device_name
from rowmill.train.folder import ranks_folder
from rowmill.train.out import remember_begun
from rowmill.train.rows import RowCounters, StoredRows, table_rules
from rowmill.train.run_files import read_run_file
from rowmill.train.state import check_goes_on, files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.ctr.rows import Columns
    from rowmill.distributed import Ranks, Watch
    from rowmill.distributed.collection import Prepared
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.store.versions import NewVersion
    from rowmill.train.rows import StepPipeline
    from rowmill.train.state import Run


class RankedClickRows(StoredRows):
    """Rows in the stores of all ranks. Every method but `step` and `inputs` is a collective."""

    def __init__(
        self,
        config: Config,
        store: Store,
        tables: Sequence[Table],
        columns: Columns,
        console: Console,
        *,
        ranks: Ranks,
        checkpoint: Checkpoint,
        watch: Watch,
        device: torch.device,
    ) -> None:
        super().__init__(store, tables, console)
        self._ranks = ranks
        self._checkpoint = checkpoint
        self._watch = watch
        self._lookahead = config.store.lookahead or 0
        self._begun = 0
        self._collection = ShardedCollection(
            stored_features(self.tables, columns),
            ranks=ranks,
            rows_on_wire=config.train.rows_on_wire,
            output_dtype=pooled_dtype(config),
        )
        self._names = [feature.name for feature in self._collection.features]
        self._device = device
        self.embeddings: nn.Module = _Stacked(self._collection, device)

    def inputs(self, ids_BS: Tensor) -> RaggedBatch:
        """The ids of this rank's rows as a ragged batch; `ids_BS` is int64 [B, S], one column per feature."""
        return RaggedBatch.from_dense(self._names, ids_BS)

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Does nothing: the pipeline tells the owners of the rows which ids are coming."""

    def reading(self) -> AbstractContextManager[object]:
        """A context manager that does nothing: evaluation batches are not announced."""
        return nullcontext()

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline:
        """A pipeline that sends ids of coming batches to the owners of the rows; up to `in_flight` steps overlap."""
        depth = max(self._lookahead, in_flight - 1, 1)
        return _RankedPipeline(
            Pipeline(self._collection, depth=depth, in_flight=in_flight), self.inputs, self._step
        )

    def counters(self) -> RowCounters:
        """Counters summed over all ranks; for the stalled time, the maximum."""
        said = self._ranks.gather(super().counters())
        return RowCounters(
            looked_up=sum(of.looked_up for of in said),
            cold=sum(of.cold for of in said),
            stalled_s=max(of.stalled_s for of in said),
            resident_bytes=sum(of.resident_bytes for of in said),
        )

    def summary(self) -> dict[str, Any]:
        """Gauges summed over all ranks; rank 0 counts the rows that every rank keeps."""
        where = {"ranks": self._ranks.count, "device": device_name(self._device)}
        mine = super().summary()
        if self._ranks.rank > 0:
            of_tables = self.store.stats()["tables"]
            for name, placement in self.store.sharding.chosen.items():
                if placement == "replicated":
                    copies = of_tables[name]["rows"]
                    mine["live_rows"] -= copies
                    mine["live_row_bytes"] -= copies * of_tables[name]["row_bytes"]
        return {**where, **_added(self._ranks.gather(mine))}

    def counts(self) -> dict[str, int]:
        """Counters summed over all ranks."""
        return _added(self._ranks.gather(super().counts()))

    def save(self, run: Run, version: NewVersion | None = None) -> None:
        """Write one checkpoint of all ranks."""
        # Measured times differ between ranks: save those of rank 0.
        said = self._ranks.gather(run.described())[0]
        if self._ranks.rank == 0:
            run.files.write(self._checkpoint.folder)
        self._checkpoint.save(run.model, run.optimizer, position=said, version=version)

    def restore(self, run: Run) -> list[str] | None:
        """Restore `run` from the last checkpoint."""
        adapted = None if run.change is None else run.adapted
        said = self._checkpoint.restore(run.model, run.optimizer, adapted=adapted)
        if said is None:
            return None
        changed = run.go_on(said)
        self._begun = run.state.step
        return changed

    def _step(self) -> None:
        self._begun += 1
        self._watch.step(self._begun)


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


class _RankedPipeline:
    """Adapts `rowmill.distributed.Pipeline` to the training loop (`StepPipeline`)."""

    def __init__(
        self, pipeline: Pipeline, inputs: Callable[[Tensor], RaggedBatch], begin: Callable[[], None]
    ) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._begin = begin
        self.waited_s = 0.0

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Prepared]]:
        """Yield each batch with its prepared lookup."""
        coming = ((self._inputs(batch.ids), batch) for batch in batches)
        with closing(self._pipeline.run(coming)) as ready:
            while True:
                since = time.perf_counter()
                found = next(ready, None)
                self.waited_s += time.perf_counter() - since
                if found is None:
                    return
                prepared, batch = found
                self._begin()
                yield batch, prepared


@contextmanager
def open_ranked_rows(
    config: Config,
    columns: Columns,
    *,
    ranks: Ranks,
    watch: Watch,
    device: torch.device,
    sizes: Mapping[str, int | None],
    threads: int,
    identity: dict[str, Any],
    console: Console,
) -> Generator[RankedClickRows]:
    """Open the store of this rank, with one table per id feature, of these sizes by name.

    To resume, the checkpoint in the folder must belong to a run with this identity.
    """

    def folder() -> tuple[tuple[Any], dict[str, Any]]:
        path = ranks_folder(config, first=ranks.rank == 0)
        if ranks.rank == 0:
            remember_begun(config)
        return (path,), {}

    (path,) = ranks.agree(folder, "the folder")
    checkpoint = Checkpoint(path, ranks=ranks)
    store = checkpoint.open(
        seed=config.train.seed,
        placement=config.train.placement,
        memory=config.store.memory,
        row_memory=config.store.row_memory,
        threads=threads,
        alter=table_rules(config, sizes),
    )
    with closing(store):
        if checkpoint.position is not None:
            for name in files_of(checkpoint.position).values():
                read_run_file(path, name)
            check_goes_on(
                checkpoint.position,
                identity,
                data=str(config.data.path),
                continues=config.train.continues,
            )
        tables = new_tables(store, config, sizes)
        yield RankedClickRows(
            config,
            store,
            tables,
            columns,
            console,
            ranks=ranks,
            checkpoint=checkpoint,
            watch=watch,
            device=device,
        )


def _added(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of numbers over the ranks; texts are taken from the first rank."""
    return {
        name: sum(of[name] for of in figures) if isinstance(value, int) else value
        for name, value in figures[0].items()
    }
