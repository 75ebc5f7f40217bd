"""The training loop, and what surrounds it.

Three ways to run it:

    rowmill train --data clicks.parquet --out out/clicks
    rowmill train --config examples/quickstart.toml
    rowmill train --config examples/quickstart.toml --resume

The loop is `Trainer.fit` with `Trainer.train_step`: batches come with a view of the next few, whose rows are being fetched meanwhile; forward makes
one fused lookup; backward updates the stored rows itself; the dense half has an optimizer of torch. Every batch is
predicted before it is trained on, so the curves over training rows are honest. With `train.in_flight` steps the rows
of coming ones are looked up before the updates of this one, as far as the staleness bound allows. A checkpoint holds rows and
everything else at once, so a run that was killed goes on from the last one with the same bits. The last two
checkpoints are made when training is over and when the test is: whatever kills a run, no more than that is repeated.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rowmill.config import ConfigError
from rowmill.data import CRITEO, batches, id_way, load_schema, open_source
from rowmill.data.generate import TEACHER_FILE, generate, generated_schema, teacher_scores
from rowmill.data.sequences import SEQUENCES_FILE, load_sequences, make_sequences
from rowmill.errors import InvalidInput, RowmillError
from rowmill.metrics import ClickMetrics, ListMetrics
from rowmill.models import DIEN
from rowmill.report import clear_report, read_report, write_report
from rowmill.train.click_model import build_model, schema_for
from rowmill.train.folder import make_out, store_folder
from rowmill.train.machine import bit_conditions, describe_machine, resident_bytes
from rowmill.train.pipeline import Pipeline
from rowmill.train.progress import RunProgress
from rowmill.train.pusher import Pusher
from rowmill.train.rows import StoredRows, plain_rows, row_eviction, row_optimizer, stored_rows
from rowmill.train.state import (
    ATTACHMENT,
    RunState,
    dense_parameters,
    identity_of,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from rich.console import Console
    from torch import Tensor

    from rowmill.config import Config
    from rowmill.data import Batch, IdWay, Source
    from rowmill.data.sequences import Sequences
    from rowmill.train.rows import RowCounters, RowSide

_TEST_BATCH = 4096


class TrainingDiverged(RowmillError):
    """The loss or a gradient is no number any more; the message says at which step, and what to lower."""


def train(config: Config, console: Console) -> dict[str, Any]:
    """Train, test, and write `report.json`, `report.html` and TensorBoard events into the run's folder.

    A run that is complete is left as it is; only a report that is not there is written again.

    Returns:
        The content of `report.json`.
    """
    out = config.train.out
    with open_trainer(config, console) as trainer:
        state = trainer.state
        if state.test is None:
            # That of an earlier run must not be taken for the one of this.
            clear_report(out)
        elif (report := read_report(out)) is not None:
            console.print(
                f"Nothing to do: the run was complete at step {state.step:,}", highlight=False
            )
            if trainer.pusher is not None:
                trainer.pusher.finish()
            return report
        else:
            console.print(f"Complete at step {state.step:,}: writing the report", highlight=False)
        total = config.train.epochs * trainer.train_rows
        with RunProgress(
            console, out / "events", total=total, done=trainer.rows_seen, curve=state.curve
        ) as progress:
            if state.test is None:
                trainer.fit(progress)
                state.test = trainer.test()
                trainer.save()
            progress.test(state.test, state.step)
        report = trainer.report(state.test)
        write_report(report, out)
        if trainer.pusher is not None:
            trainer.pusher.finish()
    return report


@contextmanager
def open_trainer(config: Config, console: Console) -> Generator[Trainer]:
    """A trainer at the first row, or where the last checkpoint left it; its store is closed at the end."""
    threads = _threads(config)
    optimizer = row_optimizer(config.rows)
    row_eviction(config.eviction)  # Raises before anything is made.
    torch.set_num_threads(threads)
    source, sequences = _open_data(config, console)
    train_rows = _train_rows(config, source, sequences)
    way = id_way(
        config.data.ids,
        source,
        train_rows=train_rows,
        buckets=config.data.buckets,
        min_count=config.data.min_count,
    )
    identity = identity_of(config, source, train_rows=train_rows, vocabulary=way.fingerprint())
    make_out(config)
    if config.train.plain:
        opened = plain_rows(config, source, way=way, threads=threads, optimizer=optimizer)
    else:
        opened = stored_rows(
            config,
            source,
            way=way,
            path=store_folder(config),
            threads=threads,
            identity=identity,
            optimizer=optimizer,
            console=console,
        )
    with opened as rows:
        pusher = None
        if config.checkpoint.push is not None and isinstance(rows, StoredRows):
            keep = config.checkpoint.keep
            pusher = Pusher(rows.store, config.checkpoint.push, keep=keep, console=console)
        candidates = None if sequences is None else sequences.candidates
        trainer = Trainer(config, source, way, train_rows, rows, identity, pusher, candidates)
        if config.train.resume:
            trainer.resume(console)
        try:
            yield trainer
        finally:
            if pusher is not None:
                pusher.wait()


class Trainer:
    """A model, its rows and its optimizer, on their way through the data."""

    def __init__(
        self,
        config: Config,
        source: Source,
        way: IdWay,
        train_rows: int,
        rows: RowSide,
        identity: dict[str, Any],
        pusher: Pusher | None = None,
        candidates: int | None = None,
    ) -> None:
        self.config = config
        self.source = source
        self.way = way
        self.train_rows = train_rows
        self.rows = rows
        self.pusher = pusher
        self.candidates = candidates
        torch.manual_seed(config.train.seed)
        self.model = build_model(config.model, rows.embeddings, source.schema)
        self.optimizer = torch.optim.Adam(dense_parameters(self.model), lr=config.train.dense_lr)
        self.state = RunState()
        self._saved_with = {"identity": identity, "conditions": bit_conditions(_threads(config))}
        self._counts_before: dict[str, int] = {}
        self._window = ClickMetrics()
        self._pipeline = None
        if config.train.in_flight > 1 and isinstance(rows, StoredRows):
            self._pipeline = Pipeline(rows, config.train.in_flight)
        self._since = time.perf_counter()
        self._counted = self.counters()

    @property
    def rows_seen(self) -> int:
        """Rows trained on, over all epochs."""
        return self.state.epoch * self.train_rows + self.state.row

    def fit(self, progress: RunProgress) -> None:
        """Train to the end of the last epoch, unless that was done already."""
        every, epochs = self.config.train.checkpoint_every, self.config.train.epochs
        if self.state.epoch >= epochs:
            return
        self._since, self._counted = time.perf_counter(), self.counters()
        while self.state.epoch < epochs:
            with closing(self.steps(self.state.row, self.train_rows)) as steps:
                for batch, pooled in steps:
                    self.train_step(batch, pooled)
                    save = every and self.state.step % every == 0
                    # A point at every checkpoint leaves nothing half-measured to save.
                    if save or self.state.step % self.config.train.log_every == 0:
                        self._add_point(progress)
                    if save:
                        progress.flush()
                        self.save()
            self.state.epoch, self.state.row = self.state.epoch + 1, 0
        self._add_point(progress)
        progress.flush()
        self.save()

    def steps(self, start: int, stop: int) -> Generator[tuple[Batch, Tensor | None]]:
        """Batches of the train part for `train_step`, with their pooled vectors where those are in flight."""
        train = self.config.train
        stream = self.ahead(start, stop, train.batch)
        if self._pipeline is None:
            yield from ((batch, None) for batch in stream)
            return
        while True:
            # A checkpoint is made while no step is open: the next ones begin behind it.
            every = train.checkpoint_every
            part = islice(stream, every - self.state.step % every if every else None)
            before = self.state.step
            yield from self._pipeline.run(part)
            if self.state.step == before:
                return

    def train_step(self, batch: Batch, pooled: Tensor | None = None) -> Tensor:
        """Predict a batch, then learn from it; returns the loss it had before."""
        if pooled is None:
            logits = self.predict(batch)
        else:
            logits = self.model.logits(batch.dense, pooled, *_lengths(batch))
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        if isinstance(self.model, DIEN) and self.model.auxiliary_loss is not None:
            loss = loss + self.config.model.auxiliary * self.model.auxiliary_loss
        self.optimizer.zero_grad()
        self._backward(loss)
        for group in self.optimizer.param_groups:
            group["lr"] = self._dense_rate()
        self.optimizer.step()
        self.rows.step()
        self.state.step += 1
        self.state.row = batch.stop
        self._window.update(*_of_task(0, logits, batch.labels))
        return loss.detach()

    def predict(self, batch: Batch) -> Tensor:
        """Logits of a batch, `[B]`, or `[B, T]` of several tasks."""
        return self.model(batch.dense, self.rows.inputs(batch.ids), *_lengths(batch))

    def _backward(self, loss: Tensor) -> None:
        value = loss.item()
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        try:
            loss.backward()
        except InvalidInput as error:
            raise self._diverged(str(error)) from error

    def _diverged(self, cause: str) -> TrainingDiverged:
        return TrainingDiverged(
            f"training diverged at step {self.state.step + 1}: {cause}. Start again with a lower --dense-lr "
            f"(now {self.config.train.dense_lr:g}) or --row-lr (now {self.config.rows.lr:g}); the last "
            "checkpoint is as it was"
        )

    def _dense_rate(self) -> float:
        """Constant, then falling evenly to 0 at the end of the last epoch."""
        train = self.config.train
        steps = train.epochs * -(-self.train_rows // train.batch)
        left = (steps - self.state.step) / (steps * max(1.0 - train.dense_decay_from, 1e-9))
        return train.dense_lr * min(left, 1.0)

    @torch.no_grad()
    def test(self) -> dict[str, float | None]:
        """Metrics of the test part; unseen ids count with their initial rows and are not kept.

        Of further tasks the AUC is told, as `auc_<name of the label>`; of lists of candidates how high the click is.
        """
        tasks = [ClickMetrics() for _ in self.source.schema.labels]
        lists = None if self.candidates is None else ListMetrics(self.candidates)
        self.model.eval()
        for batch in self.ahead(self.train_rows, self.source.rows, _TEST_BATCH):
            logits = self.predict(batch)
            for task, metrics in enumerate(tasks):
                metrics.update(*_of_task(task, logits, batch.labels))
            if lists is not None:
                lists.update(*_of_task(0, logits, batch.labels))
        self.model.train()
        names = self.source.schema.tasks
        others = {
            f"auc_{name}": metrics.compute()["auc"]
            for name, metrics in zip(names, tasks[1:], strict=True)
        }
        return tasks[0].compute() | others | ({} if lists is None else lists.compute())

    def save(self) -> None:
        """One checkpoint of rows and everything else."""
        self.state.counts = self._counts()
        packed = pack(self.state, self.model, self.optimizer, **self._saved_with)
        self.rows.save({ATTACHMENT: packed})
        if self.pusher is not None:
            self.pusher.begin()

    def resume(self, console: Console) -> None:
        """Go back to the last checkpoint, if there is one."""
        packed = self.rows.attachment(ATTACHMENT)
        if packed is None:
            console.print("No checkpoint yet: starting from the first row")
            return
        self.state, changed = unpack(packed, self.model, self.optimizer, **self._saved_with)
        self._counts_before = self.state.counts
        if self.state.epoch < self.config.train.epochs:
            # More epochs were asked for than the run had when it was complete.
            self.state.test = None
        if self.state.test is None:
            console.print(
                f"Resuming at step {self.state.step:,}, row {self.rows_seen:,}", highlight=False
            )
            for change in changed:
                console.print(
                    f"Note: {change}, so the bits may differ from those of a run that was not interrupted",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )

    def report(self, test: dict[str, float | None]) -> dict[str, Any]:
        """The content of `report.json`."""
        config, state = self.config, self.state
        path = config.data.path
        return {
            "test": test,
            "train": {
                "rows_per_s": self.rows_seen / state.seconds if state.seconds else None,
                "stall_share": state.stall_share,
                "hit_rate": state.hit_rate,
            },
            "teacher": None if path is None else teacher_scores(path, self.train_rows),
            "config": config.as_dict(),
            "machine": describe_machine(_threads(config)),
            "run": {
                "train_rows": self.train_rows,
                "test_rows": self.source.rows - self.train_rows,
                "steps": state.step,
                "seconds": state.seconds,
                **self.rows.summary(),
                **self._counts(),
            },
            "curve": state.curve,
        }

    def ahead(self, start: int, stop: int, batch: int) -> Iterator[Batch]:
        """Batches, each one announced to the rows while the few before it are worked on."""
        stream = batches(self.source, self.way, start=start, stop=stop, batch=batch)
        waiting: deque[Batch] = deque()
        for coming in stream:
            # The first batch of all is read at once; announcing it would only fetch its rows twice.
            if waiting:
                self.rows.lookahead(coming.ids, steps=len(waiting) + 1)
            waiting.append(coming)
            if len(waiting) > self.config.store.lookahead:
                yield waiting.popleft()
        yield from waiting

    def counters(self) -> RowCounters:
        """Figures of the rows since the start."""
        counted = self.rows.counters()
        if self._pipeline is None:
            return counted
        # What its thread waits for the loop need not: only what is not there in time stalls it.
        return replace(counted, stalled_s=self._pipeline.waited_s)

    def _counts(self) -> dict[str, int]:
        before = self._counts_before
        return {name: before.get(name, 0) + count for name, count in self.rows.counts().items()}

    def _add_point(self, progress: RunProgress) -> None:
        if self._window.rows == 0:
            return
        now, counted = time.perf_counter(), self.counters()
        seconds = now - self._since
        looked_up = counted.looked_up - self._counted.looked_up
        cold = counted.cold - self._counted.cold
        stalled_s = counted.stalled_s - self._counted.stalled_s
        self.state.seconds += seconds
        self.state.looked_up += looked_up
        self.state.cold += cold
        self.state.stalled_s += stalled_s
        point = {
            "step": self.state.step,
            "rows": self.rows_seen,
            **self._window.compute(),
            "rows_per_s": self._window.rows / seconds,
            "hit_rate": 1.0 - cold / looked_up if looked_up else None,
            "stall_share": min(stalled_s / seconds, 1.0),
            "row_bytes": counted.resident_bytes,
            "process_bytes": resident_bytes(),
        }
        self.state.curve.append(point)
        progress.show(point, self.rows_seen)
        self._window.reset()
        self._since, self._counted = now, counted


def _threads(config: Config) -> int:
    # One core is left to the threads of the store that fetch, write and clean.
    return config.train.threads or max(len(os.sched_getaffinity(0)) - 1, 1)


def _lengths(batch: Batch) -> tuple[()] | tuple[Tensor]:
    return () if batch.lengths is None else (batch.lengths,)


def _of_task(task: int, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return (logits, labels) if labels.dim() == 1 else (logits[:, task], labels[:, task])


def _open_data(config: Config, console: Console) -> tuple[Source, Sequences | None]:
    path = config.data.path
    if path is None:
        raise ConfigError("data.path is not set: name the click log with --data")
    if config.generate is not None and not (path / TEACHER_FILE).exists():
        console.print(
            f"Generating {config.generate.rows:,} rows in {path}", highlight=False, markup=False
        )
    if config.generate is not None:
        generate(path, config.generate)
    if config.sequences is not None:
        if not (path / SEQUENCES_FILE).exists():
            console.print(f"Making sequences in {path}", highlight=False, markup=False)
        make_sequences(path, config.sequences)
    sequences = load_sequences(path) if config.data.schema is None else None
    schema = CRITEO if config.data.schema is None else load_schema(config.data.schema)
    if config.generate is not None and config.data.schema is None:
        schema = generated_schema(config.generate)
    if sequences is not None:
        schema = sequences.schema
    return open_source(path, schema_for(config.model, schema)), sequences


def _train_rows(config: Config, source: Source, sequences: Sequences | None) -> int:
    asked = config.data.train_rows
    if sequences is not None:
        if asked not in (None, sequences.train_rows):
            raise ConfigError(
                f"data.train_rows = {asked}, but the lists of candidates of {config.data.path} begin at row "
                f"{sequences.train_rows}: drop --train-rows"
            )
        return sequences.train_rows
    train_rows = source.rows - source.rows // 5 if asked is None else asked
    if train_rows > source.rows or train_rows == 0:
        raise ConfigError(
            f"data.train_rows = {train_rows}, but {config.data.path} has {source.rows} rows"
        )
    return train_rows
