"""The product's trainer on a generated log, with all rows in the store and memory for a fraction of them.

Shared by the benchmarks of out-of-core training. In an empty store the first round would insert rows. So all rows of the
log are put first, with their initial values and the most frequent ones last. The memory then holds about the rows it
would hold after long training, and a short warm-up suffices.
"""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from rowmill.config import Config, DataConfig, ModelConfig, RowsConfig, StoreConfig, TrainConfig
from rowmill.ctr.data.generate import table_ids
from rowmill.ctr.settings import GenerateConfig
from rowmill.store import Store
from rowmill.train.rows import StoredRows
from rowmill.train.run import Trainer, open_trainer

_PUT_ROWS = 65_536
_INDEX_BYTES = 64
"""Memory beyond the bytes of rows: index and bookkeeping per row, and a constant for buffers."""


@dataclass(frozen=True)
class Shape:
    """The work: tables, ids, batches, and the number of steps in the log."""

    rows_per_table: int
    steps: int
    tables: int = 26
    zipf: float = 1.05
    batch: int = 2048
    seed: int = 1

    @property
    def log(self) -> GenerateConfig:
        """Settings of the generated log; they depend on the shape only."""
        return GenerateConfig(
            rows=self.steps * self.batch,
            seed=self.seed,
            tables=self.tables,
            rows_per_table=self.rows_per_table,
            zipf=self.zipf,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows: weights and Adagrad state, in whole cache lines."""
        assert (ModelConfig().dim, RowsConfig().optimizer) == (16, "adagrad")
        return self.rows_per_table * self.tables * 128


def config_of(
    shape: Shape,
    folder: Path,
    name: str,
    *,
    share: float | None,
    store: StoreConfig,
    train: TrainConfig,
) -> Config:
    """The settings of a run with row memory for a fraction `share` of the rows' bytes; None: for all rows."""
    rows = shape.rows_per_table * shape.tables
    memory = shape.row_bytes + rows * _INDEX_BYTES + (512 << 20)
    return Config(
        data=DataConfig(path=folder / "log", train_rows=shape.steps * shape.batch),
        generate=shape.log,
        store=replace(
            store,
            memory=str(memory),
            row_memory=None if share is None else str(int(shape.row_bytes * share)),
        ),
        train=replace(
            train, batch=shape.batch, seed=shape.seed, checkpoint_every=0, out=folder / name
        ),
    )


class LoadedTrainer:
    """A trainer with all rows in its store. Each call continues after the steps of the call before."""

    def __init__(self, trainer: Trainer, steps: Iterator[tuple[Any, Any]]) -> None:
        assert isinstance(trainer.rows, StoredRows)
        self.trainer = trainer
        self.store = trainer.rows.store
        self._steps = steps

    @property
    def folder(self) -> Path:
        """The folder of the store."""
        return Path(self.store.location)

    def train(self, steps: int) -> int:
        """Train for some steps; returns their number of examples."""
        begin, done = self.trainer.state.step, 0
        for batch, pooled in islice(self._steps, steps):
            self.trainer.train_step(batch, pooled)
            done += len(batch)
        assert self.trainer.state.step == begin + steps, "the data is too short"
        return done

    def round(self, variant: str, number: int, *, steps: int) -> dict[str, Any]:
        """Train and measure one round: a sample, and the counters of the store per step."""
        before, waited = self.store.stats(), self._waited_s()
        sample = common.measure(variant, number, lambda: self.train(steps))
        after = self.store.stats()

        def grew(name: str) -> int:
            return after[name] - before[name]

        return {
            **vars(sample),
            "rows_per_s": sample.units / sample.wall_s,
            "cpu_us_per_row": 1e6 * sample.cpu_s / sample.units,
            "hit_rate": 1 - grew("cold_reads") / grew("rows_looked_up"),
            "stall_share": (self._waited_s() - waited) / sample.wall_s,
            "distinct_rows_per_step": grew("rows_looked_up") / steps,
            "cold_rows_per_step": (grew("cold_reads") + grew("lookahead_loaded")) / steps,
            "blocks_read_per_step": grew("device_blocks_read") / steps,
            "bytes_written_per_step": grew("device_bytes_written") / steps,
            "lookahead_late_per_step": grew("lookahead_late") / steps,
        }

    def unannounced(self) -> "LoadedTrainer":
        """The same trainer on the same batches, without lookahead."""
        return _UnannouncedTrainer(self.trainer, self._steps)

    def _waited_s(self) -> float:
        return self.trainer.counters().stalled_s


class _UnannouncedTrainer(LoadedTrainer):
    def train(self, steps: int) -> int:
        def ignore(batch: Any, *, steps: int) -> None:
            del batch, steps

        task = self.trainer.task
        task.lookahead = ignore
        try:
            return super().train(steps)
        finally:
            del task.lookahead  # Uncovers the method of the class again.


@contextmanager
def loaded(config: Config, shape: Shape) -> Generator[LoadedTrainer]:
    """A trainer with all rows of the log's tables in its store."""
    with open_trainer(config, Console(quiet=True)) as trainer:
        name = config.train.out.name
        print(f"{name}: putting {shape.tables} x {shape.rows_per_table:,} rows", file=sys.stderr)
        tables = [table_ids(shape.log, number) for number in range(shape.tables)]
        assert isinstance(trainer.rows, StoredRows)
        for start in reversed(range(0, shape.rows_per_table, _PUT_ROWS)):
            for table, ids in zip(trainer.rows.tables, tables, strict=True):
                chunk = ids[start : start + _PUT_ROWS]
                table.put(chunk, table.get(chunk))
        trainer.rows.store.checkpoint()
        with closing(trainer.steps(0)) as steps:
            yield LoadedTrainer(trainer, steps)


def wait_for_lookahead(store: Store) -> None:
    """Wait until all prefetches have ended, because they would slow down a probe of the device."""
    while store.core.lookahead_pending() > 0:
        time.sleep(0.01)


def device_reads_per_s(program: Path, store: Path, *, seconds: float, seed: int) -> float:
    """Random block reads per second of the device, measured on the store's own log."""
    options = {"folder": store, "seconds": seconds, "seed": seed, "rounds": 1}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [str(program), "device", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    line = json.loads(done.stdout)
    return line["rows"] / line["wall_s"]
