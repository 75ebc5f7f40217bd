"""The tables of a run, sharded over the ranks of torch.distributed, with one checkpoint of all ranks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from rowmill.distributed import (
    Checkpoint,
    Pipeline,
    ShardedCollection,
    checkpoint_of_ranks,
    saved_state,
)
from rowmill.train.backend import CPU, device_name
from rowmill.train.folder import ranks_folder
from rowmill.train.out import remember_begun
from rowmill.train.rows import RowCounters, StoredRows, table_rules
from rowmill.train.run_files import read_run_file
from rowmill.train.state import check_goes_on, files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.distributed.collection import Prepared
    from rowmill.nn import Feature
    from rowmill.nn.ragged import RaggedBatch
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.store.versions import NewVersion
    from rowmill.train.on_ranks import OnRanks
    from rowmill.train.rows import StepPipeline
    from rowmill.train.state import Run


class RankedRows(StoredRows, ABC):
    """Rows in the stores of all ranks. Every method but `step` and `ids_of` is a collective.

    Attributes:
        collection: Looks up rows of all ranks.
        equal_streams: Whether the random streams of torch are equal on all ranks, so that a run on another number of ranks
            resumes with the saved one.
    """

    equal_streams: ClassVar[bool] = False

    def __init__(
        self,
        config: Config,
        store: Store,
        tables: Sequence[Table],
        features: Sequence[Feature],
        console: Console,
        *,
        here: OnRanks,
        checkpoint: Checkpoint,
        output_dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        super().__init__(store, tables, console)
        self._ranks = here.ranks
        self._checkpoint = checkpoint
        self._watch = here.watch
        self._lookahead = config.store.lookahead or 0
        self._begun = 0
        self._device = device
        self.collection = ShardedCollection(
            features,
            ranks=here.ranks,
            rows_on_wire=config.train.rows_on_wire,
            output_dtype=output_dtype,
        )

    @abstractmethod
    def ids_of(self, batch: Any) -> RaggedBatch:
        """The ids that this rank looks up for a batch of the task."""

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline:
        """A pipeline that sends ids of coming batches to the owners of the rows; up to `in_flight` steps overlap."""
        depth = max(self._lookahead, in_flight - 1, 1)
        pipeline = Pipeline(self.collection, depth=depth, in_flight=in_flight)
        return _RankedPipeline(pipeline, self.ids_of, self._step)

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
        if self.equal_streams:
            folder = self._checkpoint.folder
            manifest, _ = checkpoint_of_ranks(folder, None)
            torch.set_rng_state(saved_state(folder, manifest)["random"][0])
        changed = run.go_on(said)
        self._begun = run.state.step
        return changed

    def _step(self) -> None:
        self._begun += 1
        self._watch.step(self._begun)


class _RankedPipeline:
    """Adapts `rowmill.distributed.Pipeline` to the training loop (`StepPipeline`)."""

    def __init__(
        self, pipeline: Pipeline, ids_of: Callable[[Any], RaggedBatch], begin: Callable[[], None]
    ) -> None:
        self._pipeline = pipeline
        self._ids_of = ids_of
        self._begin = begin
        self.waited_s = 0.0

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Prepared]]:
        """Yield each batch with its prepared lookup."""
        coming = ((self._ids_of(batch), batch) for batch in batches)
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
def open_ranked_store(
    config: Config,
    here: OnRanks,
    *,
    threads: int,
    identity: dict[str, Any],
    sizes: Mapping[str, int | None],
) -> Generator[tuple[Store, Checkpoint]]:
    """Open the store of this rank and the checkpoint of all ranks.

    To resume, the checkpoint in the folder must belong to a run with this identity. `sizes`: number of ids by table, for
    `train.continues`.
    """
    ranks = here.ranks

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
        yield store, checkpoint


def _added(figures: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of numbers over the ranks; texts are taken from the first rank."""
    return {
        name: sum(of[name] for of in figures) if isinstance(value, int) else value
        for name, value in figures[0].items()
    }
