"""The training loop.

Examples of commands that run it:

    rowmill train --data clicks.parquet --out out/clicks
    rowmill train --config examples/quickstart.toml
    rowmill train --config examples/quickstart.toml --resume
    rowmill train --continue out/clicks --data tomorrow.parquet
    rowmill train --task kge --data graph --out out/graph
    rowmill train --task gnn --data nodes.npz --out out/nodes
    torchrun --nproc-per-node 2 --no-python rowmill train --data clicks.parquet --out out/clicks

The loop is `Trainer.fit` with `Trainer.train_step`. The rows of the next batches are prefetched. The task computes the
loss, and the backward pass updates the stored rows. With `train.in_flight` > 1, rows of coming steps are looked up
before the updates of this step, within the staleness bound. A checkpoint holds rows and dense state together, so a
killed run resumes bit-identically. The last two checkpoints follow training and the test: neither is repeated after a
crash that comes later.
"""

from __future__ import annotations

import math
import time
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch

from rowmill.errors import InvalidInput, RowmillError
from rowmill.train.follow import follow
from rowmill.train.machine import bit_conditions, describe_machine, resident_bytes, step_threads
from rowmill.train.out import run_folder
from rowmill.train.progress import RunProgress
from rowmill.train.ranks import check_alone, is_first, rank_conditions, started_ranks
from rowmill.train.replacement import Replacement
from rowmill.train.report import clear_report, figures_of, read_report, write_report
from rowmill.train.rows import StoredRows, check_tables, row_eviction, row_optimizer
from rowmill.train.run_files import RunFiles
from rowmill.train.saved_files import settings_to_save
from rowmill.train.state import Run
from rowmill.train.task import announced, check_flags
from rowmill.train.versions import new_version
from rowmill.train.warm_start import warm_start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.train.ending import Ending
    from rowmill.train.pusher import Pusher
    from rowmill.train.rows import RowCounters
    from rowmill.train.state import RunState
    from rowmill.train.task import Task


_TASKS = {
    "ctr": "rowmill.ctr.task:open_clicks",
    "kge": "rowmill.kge.task:open_graph",
    "gnn": "rowmill.gnn.task:open_nodes",
}
"""The function that opens each task, by name: tasks import this package, so it imports them only when a run starts."""
_RANKED_TASKS = {
    "ctr": "rowmill.ctr.ranked_task:open_ranked_clicks",
    "kge": "rowmill.kge.ranked_task:open_ranked_graph",
    "gnn": "rowmill.gnn.ranked_task:open_ranked_nodes",
}
"""As `_TASKS`, under torchrun."""
_LOOKAHEAD_OF_RANKS = 4
"""Default number of batches to prefetch under torchrun: each is prepared, which takes more memory than announcing."""


class TrainingDiverged(RowmillError):
    """The loss or a gradient became NaN or infinite; the message gives the step and the settings to lower."""


def train(config: Config, console: Console) -> dict[str, Any]:
    """Train, test, and write `report.json`, `report.html` and TensorBoard events into the run's folder.

    For a resumed run that is already complete, only a missing report is written. For one that is continued with data that it
    was trained on before, nothing is done.

    Returns:
        The content of `report.json`.
    """
    with open_trainer(config, console) as trainer:
        state, out = trainer.state, trainer.config.train.out
        if (number := trainer.run.repeated) is not None:
            console.print(
                f"Nothing to do: {config.data.path} is part {number} of the data that this run was trained on",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            return read_report(out) or trainer.report(state.parts[number - 1].test)
        if state.test is None:
            # The folder may have the report of an earlier run. That of the part before stays until the first checkpoint.
            if is_first() and not state.begins_part:
                clear_report(out)
        elif (report := read_report(out)) is not None:
            console.print(
                f"Nothing to do: the run is complete, at step {state.step:,}", highlight=False
            )
            if trainer.pusher is not None:
                trainer.pusher.finish()
            return report
        else:
            console.print(
                f"The run is complete, at step {state.step:,}: writing the missing report",
                highlight=False,
            )
        follows = config.data.follow
        total = state.examples_before + config.train.epochs * trainer.train_rows
        with RunProgress(
            console,
            out / "events" if is_first() else None,
            figures=figures_of(trainer.config.as_dict()),
            total=None if follows else total,
            done=trainer.rows_seen,
            curve=state.curve,
            tested=state.begins_part,
        ) as progress:
            if follows:
                test = follow(trainer, progress, console)
            else:
                if state.test is None:
                    trainer.fit(progress)
                    state.test = trainer.test()
                    trainer.save()
                test = state.test
                progress.test(test, state.step)
        report = trainer.report(test)
        if follows and not state.has_followed:
            # No file has arrived: the report stays that of the part before.
            report = read_report(out) or report
        if is_first():
            write_report(report, out)
        if trainer.pusher is not None:
            trainer.pusher.finish()
    return report


@contextmanager
def open_trainer(config: Config, console: Console) -> Generator[Trainer]:
    """A trainer at the first example or, with `train.resume`, at the last checkpoint. The store is closed at exit.

    Its settings have the folder of the run as `train.out`.
    """
    threads = step_threads(config)
    # Check settings before any file is created.
    check_flags(config)
    for table in (None, *(config.rows.tables or {})):
        row_optimizer(config.rows, table)
    row_eviction(config.eviction)
    alone = started_ranks() is None
    torch.set_num_threads(threads)
    if alone:
        check_alone(config)
    elif config.store.lookahead is None:
        config = replace(config, store=replace(config.store, lookahead=_LOOKAHEAD_OF_RANKS))
    with (
        run_folder(config) if alone else nullcontext() as folder,
        task_opener(config)(folder.config if folder else config, console, threads) as task,
    ):
        config = task.config
        if isinstance(task.rows, StoredRows):
            check_tables(config, task.rows.store.table_names())
            warm_start(config, task.rows, console)
        if folder is not None:
            folder.begin(console)
        pusher = None
        if config.checkpoint.push is not None and isinstance(task.rows, StoredRows):
            pusher = task.rows.pusher(config.checkpoint.push, keep=config.checkpoint.keep)
        trainer = Trainer(config, task, pusher)
        if config.train.resume:
            trainer.resume(console)
        try:
            yield trainer
        finally:
            if pusher is not None:
                pusher.wait()


def task_opener(
    config: Config,
) -> Callable[[Config, Console, int], AbstractContextManager[Task]]:
    """The function that opens the task of the settings: called with settings, console and number of threads."""
    tasks = _TASKS if started_ranks() is None else _RANKED_TASKS
    return resolve_name(tasks[config.train.task])


class Trainer:
    """A task and its position in the data: trains, tests, saves and reports."""

    def __init__(self, config: Config, task: Task, pusher: Pusher | None = None) -> None:
        self.config = config
        self.task = task
        self.rows = task.rows
        self.optimizer = task.optimizer
        self.pusher = pusher
        conditions = bit_conditions(step_threads(config)) | rank_conditions(config)
        self.run = Run(task.model, task.optimizer, task.identity, conditions, self.files())
        # A file that is followed is the data only from its first step on.
        self.run.state.data = str(config.data.path) if not config.data.follow else ""
        self.run.continues = config.train.continues
        self.run.change = task.change
        self._replacement = Replacement.found(config.train.out) if is_first() else None
        self._counts_before: dict[str, int] = {}
        self._pipeline = self.rows.pipeline(task.look_up, config.train.in_flight)
        self._saved = (0, 0)
        self._since = time.perf_counter()
        self._counted = self.counters()

    def files(self) -> RunFiles:
        """The files of the run that its next checkpoint names."""
        return RunFiles({"config": settings_to_save(self.config), **self.task.described()})

    @property
    def state(self) -> RunState:
        """Position and measurements of the run."""
        return self.run.state

    @property
    def train_rows(self) -> int:
        """Examples per epoch of the current part of the data."""
        return self.task.train_rows

    @property
    def rows_seen(self) -> int:
        """Examples trained on so far, over all epochs and parts of the data."""
        return self.state.examples_before + self.state.epoch * self.train_rows + self.state.row

    def fit(self, progress: RunProgress) -> None:
        """Train to the end of the last epoch; return at once if the run has already reached it."""
        if self.state.epoch < self.config.train.epochs:
            self.train_part(progress)
            progress.flush()
            self.save()

    def train_part(self, progress: RunProgress, ending: Ending | None = None) -> bool:
        """Train to the end of the part's last epoch; returns False if `ending` comes before, after the steps in flight."""
        every, epochs = self.config.train.checkpoint_every, self.config.train.epochs
        self._since, self._counted = time.perf_counter(), self.counters()
        while self.state.epoch < epochs:
            ends = False
            with closing(self.steps(self.state.row)) as steps:
                for batch, rows in steps:
                    self.train_step(batch, rows)
                    save = every and self.state.step % every == 0
                    # A checkpoint holds no open window of metrics, so end the window before it.
                    if save or self.state.step % self.config.train.log_every == 0:
                        self._add_point(progress)
                    if save:
                        progress.flush()
                        self.save()
                    ends = ending is not None and ending.agreed
                    if ends and self._pipeline is None:
                        break
                    if ends and self._pipeline is not None:
                        # Lookups of steps that are never trained would count as lookups of their rows.
                        self._pipeline.end()
            if ends:
                self._add_point(progress)
                return False
            self.state.epoch, self.state.row = self.state.epoch + 1, 0
            self._validate(progress)
        self._add_point(progress)
        return True

    def steps(self, start: int) -> Generator[tuple[Any, Any]]:
        """Yield batch and rows for each `train_step` of this epoch; rows are None unless steps are in flight."""
        train = self.config.train
        stream = self.ahead(start)
        if self._pipeline is None:
            yield from ((batch, None) for batch in stream)
            return
        while not self._pipeline.ends:
            # A checkpoint needs that no step is open, so end the pipeline before each one.
            every = train.checkpoint_every
            part = islice(stream, every - self.state.step % every if every else None)
            before = self.state.step
            yield from self._pipeline.run(part)
            if self.state.step == before:
                return

    def train_step(self, batch: Any, rows: Any = None) -> Tensor:
        """Train on one batch; return its loss before the update."""
        loss, predicted = self.task.loss(batch, rows)
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self._backward(loss)
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._dense_rate()
            self.optimizer.step()
        self.rows.step()
        self.state.step += 1
        self.state.row = batch.stop
        self.task.observe(batch, predicted)
        return loss.detach()

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
            "checkpoint is unchanged"
        )

    def _dense_rate(self) -> float:
        """The dense learning rate of this step: constant, then linear to 0 at the end of the part's last epoch."""
        train = self.config.train
        steps = train.epochs * -(-self.train_rows // train.batch)
        done = self.state.step - self.state.steps_before
        if train.dense_decay_from == 1 or self.config.data.follow:
            return train.dense_lr
        left = (steps - done) / (steps * (1.0 - train.dense_decay_from))
        return train.dense_lr * min(left, 1.0)

    def test(self) -> dict[str, float | None]:
        """Metrics on the test split."""
        return self.task.test()

    def save(self) -> None:
        """Write one checkpoint of rows and run state, and start pushing it if `checkpoint.push` is set."""
        self.state.counts = self._counts()
        self.rows.save(self.run, new_version(self.config.checkpoint, self.state))
        if self.state.test is None and is_first():
            # It is of the part before.
            clear_report(self.config.train.out)
        self._saved = self._progress()
        self._remove_replaced()
        if self.pusher is not None:
            self.pusher.begin()

    def save_steps(self) -> None:
        """Write a checkpoint, unless nothing was trained on since the last one."""
        if self._progress() != self._saved:
            self.save()

    def _progress(self) -> tuple[int, int]:
        return self.state.step, len(self.state.parts)

    def resume(self, console: Console) -> None:
        """Restore the last checkpoint, if there is one."""
        changed = self.rows.restore(self.run)
        if changed is None:
            console.print("No checkpoint to resume from: starting from the first row")
            return
        self._remove_replaced()
        self._saved = self._progress()
        self._counts_before = self.state.counts
        if self.run.repeated is None and self.state.epoch < self.config.train.epochs:
            # train.epochs was raised after the run was complete, so it will be tested again.
            self.state.test = None
        if self.run.repeated is None and self.state.test is None:
            part = f" of part {len(self.state.parts) + 1}" if self.state.parts else ""
            part += f", {self.state.data}" if part and self.state.data else ""
            begins = "Beginning" if self.state.begins_part else "Resuming"
            console.print(
                f"{begins} at step {self.state.step:,}, row {self.rows_seen:,}{part}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            if self.run.change is not None:
                console.print(
                    f"New: {self.run.change}", highlight=False, markup=False, soft_wrap=True
                )
            for change in changed:
                console.print(
                    f"Warning: {change}, so results may differ in rounding from an uninterrupted run",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )

    def _remove_replaced(self) -> None:
        """Remove the run that this one replaces: this one has a checkpoint."""
        if self._replacement is not None:
            self._replacement.remove()
            self._replacement = None

    def report(self, test: dict[str, float | None]) -> dict[str, Any]:
        """The content of `report.json`."""
        config, state = self.config, self.state
        about = self.task.about()
        if config.data.follow:
            about["run"] = {"train_rows": self.rows_seen, "test_rows": 0}
        return {
            "test": test,
            "train": {
                "rows_per_s": self.rows_seen / state.seconds if state.seconds else None,
                "stall_share": state.stall_share,
                "hit_rate": state.hit_rate,
            },
            **about,
            "config": config.as_dict(),
            "machine": describe_machine(step_threads(config)),
            "run": {
                **about["run"],
                "steps": state.step,
                "seconds": state.seconds,
                **self.rows.summary(),
                **self._counts(),
            },
            "parts": [vars(part) for part in state.parts],
            "curve": state.curve,
        }

    def ahead(self, start: int) -> Iterator[Any]:
        """The batches of this epoch from example `start` on; their rows are prefetched a few steps ahead."""
        stream = self.task.batches(self.state.epoch, start)

        def announce(batch: Any, steps: int) -> None:
            self.task.lookahead(batch, steps=steps)

        return announced(stream, announce, self.config.store)

    def counters(self) -> RowCounters:
        """Row counters since the start."""
        counted = self.rows.counters()
        if self._pipeline is None:
            return counted
        # The pipeline's thread waits for cold rows; only the loop's own waits are stalls.
        return replace(counted, stalled_s=self._pipeline.waited_s)

    def _counts(self) -> dict[str, int]:
        before = self._counts_before
        return {name: before.get(name, 0) + count for name, count in self.rows.counts().items()}

    def _validate(self, progress: RunProgress) -> None:
        """At the end of an epoch with validation, add a point with its metrics to the curves."""
        if not self.task.validates(self.state.epoch):
            return
        self._add_point(progress)
        figures = self.task.validate()
        point = {"step": self.state.step, "rows": self.rows_seen, **figures}
        self.state.curve.append(point)
        progress.show(point, self.rows_seen)
        # Do not count the time and reads of validation as training.
        self._since, self._counted = time.perf_counter(), self.counters()

    def _add_point(self, progress: RunProgress) -> None:
        window = self.task.window
        if window.rows == 0:
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
            **window.compute(),
            "rows_per_s": window.rows / seconds,
            "hit_rate": 1.0 - cold / looked_up if looked_up else None,
            "stall_share": min(stalled_s / seconds, 1.0),
            "row_bytes": counted.resident_bytes,
            "process_bytes": resident_bytes(),
        }
        self.state.curve.append(point)
        progress.show(point, self.rows_seen)
        window.reset()
        self._since, self._counted = now, counted
