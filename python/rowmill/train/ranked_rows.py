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
from rowmill.store.row_files import load_rows
from rowmill.train.backend import CPU, device_name
from rowmill.train.folder import ranks_folder
from rowmill.train.out import remember_begun
from rowmill.train.pusher import Pusher, PusherOfRanks
from rowmill.train.rows import RowCounters, StoredRows, feed_options, table_rules
from rowmill.train.run_files import files_of, read_run_file
from rowmill.train.state import check_goes_on

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.distributed import PushOfRanks
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
            speeds=config.train.speeds,
            rows_on_wire=config.train.rows_on_wire,
            output_dtype=output_dtype,
        )

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run was saved before."""
        return self._checkpoint.number > 0

    def load(
        self, table: Table, file: str, *, vectors: str | None = None, ids: str | None = None
    ) -> int:
        """Write the vectors of a file to the rows of a table on the ranks that keep them; returns their number."""

        def write() -> tuple[int, dict[str, Any]]:
            def kept(some: NDArray[np.int64]) -> NDArray[np.int64]:
                return self.collection.kept_here(table, torch.from_numpy(some)).numpy()

            return load_rows(table, file, vectors=vectors, ids=ids, kept=kept), {}

        return self._ranks.agree(write, f"the rows of {file}")

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
        of_ranks = self._ranks.gather((run.described(), self.store.stats()["feed_failure"]))
        said = of_ranks[0][0]
        failed = (f"rank {rank}: {why}" for rank, (_, why) in enumerate(of_ranks) if why)
        self._warn_of_feed(next(failed, None))
        if self._ranks.rank == 0:
            run.files.write(self._checkpoint.folder)
        self._checkpoint.save(run.model, run.optimizer, position=said, version=version)

    def pusher(self, url: str, *, keep: int) -> Pusher:
        """Pushes the checkpoints of all ranks to a URL, where `keep` stay."""

        def last() -> PushOfRanks:
            checkpoint = self._checkpoint
            names = files_of(checkpoint.position).values()
            files = {name: checkpoint.folder / name for name in names}
            return checkpoint.to_push(url, keep=keep, files=files)

        return PusherOfRanks(self._ranks, last, self.store, self._console)

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
        self._taken = 0
        self._last: int | None = None
        self.waited_s = 0.0

    @property
    def ends(self) -> bool:
        """Whether `end` was called."""
        return self._last is not None

    def end(self) -> None:
        """Begin no further step. Call it after the same step on all ranks."""
        if self._last is None:
            # The thread of this rank may have sent the ids of as many batches, and the other ranks expect the same.
            self._last = self._taken + self._pipeline.depth

    def _until_end(self, batches: Iterable[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches, 1):
            yield batch
            if self._last is not None and number >= self._last:
                return

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Prepared]]:
        """Yield each batch with its prepared lookup."""
        self._taken = 0
        coming = ((self._ids_of(batch), batch) for batch in self._until_end(batches))
        with closing(self._pipeline.run(coming)) as ready:
            while True:
                since = time.perf_counter()
                found = next(ready, None)
                self.waited_s += time.perf_counter() - since
                if found is None:
                    return
                prepared, batch = found
                self._taken += 1
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
        **feed_options(config),
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
