"""The task `ctr`: a click model, trained on a log in its order, tested on the rows behind.

Forward makes one fused lookup; the dense half has an optimizer of torch. Every batch is predicted before it is trained
on, so the curves over training rows are honest.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rowmill.config.setting import ConfigError
from rowmill.ctr.click_model import build_model, schema_for
from rowmill.ctr.data import CRITEO, batches, id_way, load_schema, open_source
from rowmill.ctr.data.generate import TEACHER_FILE, generate, generated_schema, teacher_scores
from rowmill.ctr.data.sequences import SEQUENCES_FILE, load_sequences, make_sequences
from rowmill.ctr.metrics import ClickMetrics, ListMetrics
from rowmill.ctr.models import DIEN
from rowmill.ctr.rows import plain_rows, stored_rows
from rowmill.train.backend import CPU
from rowmill.train.dense import dense_optimizer, dense_precision
from rowmill.train.rows import row_optimizer
from rowmill.train.state import click_identity, dense_parameters
from rowmill.train.task import announced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.ctr.data import ClickBatch, IdWay, Source
    from rowmill.ctr.data.sequences import Sequences
    from rowmill.ctr.rows import ClickRows

_TEST_BATCH = 4096
_M = TypeVar("_M")


@dataclass(frozen=True)
class Log:
    """The log of a run.

    Attributes:
        source: Its rows.
        way: How its values become ids.
        train_rows: Rows to train on, those at its beginning.
        candidates: Of sequences, how many rows of the test part are a list of candidates.
        identity: What must not change between the parts of a run on it.
    """

    source: Source
    way: IdWay
    train_rows: int
    candidates: int | None
    identity: dict[str, Any]

    @classmethod
    def open(cls, config: Config, console: Console) -> Log:
        """The log of the settings, made first if it is to be."""
        source, sequences = _open_data(config, console)
        train_rows = _train_rows(config, source, sequences)
        way = id_way(
            config.data.ids,
            source,
            train_rows=train_rows,
            buckets=config.data.buckets,
            min_count=config.data.min_count,
        )
        identity = click_identity(
            config, source, train_rows=train_rows, vocabulary=way.fingerprint()
        )
        candidates = None if sequences is None else sequences.candidates
        return cls(source, way, train_rows, candidates, identity)


class ClickTask:
    """A click model and its log.

    Attributes:
        device: Of the dense half. Batches come, and what was predicted goes, in the memory of the CPU.
    """

    def __init__(
        self, config: Config, log: Log, rows: ClickRows, device: torch.device = CPU
    ) -> None:
        self.config = config
        self.log = log
        self.rows = rows
        self.device = device
        self.train_rows = log.train_rows
        self.identity = log.identity
        torch.manual_seed(config.train.seed)
        # Drawn on the CPU: equal seeds are equal weights on every device.
        self.model = build_model(config.model, rows.embeddings, log.source.schema).to(device)
        self.optimizer = dense_optimizer(config.train, dense_parameters(self.model), device)
        self.window = self._metrics(ClickMetrics())

    def batches(self, epoch: int, start: int) -> Iterator[ClickBatch]:
        """Rows of the train part, in the order of the log in every epoch."""
        return self._batches(start, self.train_rows, self.config.train.batch)

    def lookahead(self, batch: ClickBatch, *, steps: int) -> None:
        """Announce the ids of a batch."""
        self.rows.lookahead(batch.ids, steps=steps)

    def look_up(self, batch: ClickBatch) -> Tensor:
        """The pooled vectors, `[B, F, D]`."""
        return self.rows.embeddings(self.rows.inputs(batch.ids))

    def loss(self, batch: ClickBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the predicted clicks with what the model adds to it, and their logits."""
        logits = (
            self._logits(self.model, batch, self.rows.inputs(batch.ids))
            if rows is None
            else self._logits(self.model.logits, batch, rows.to(self.device))
        )
        loss = binary_cross_entropy_with_logits(logits, batch.labels.to(self.device))
        if isinstance(self.model, DIEN) and self.model.auxiliary_loss is not None:
            loss = loss + self.config.model.auxiliary * self.model.auxiliary_loss
        return loss, logits.detach().cpu()

    def predict(self, batch: ClickBatch) -> Tensor:
        """Logits of a batch, `[B]`, or `[B, T]` of several tasks."""
        return self._logits(self.model, batch, self.rows.inputs(batch.ids)).cpu()

    def observe(self, batch: ClickBatch, predicted: Tensor) -> None:
        """The logits of a batch that was learned from."""
        self.window.update(*_of_task(0, predicted, batch.labels))

    def validates(self, epochs: int) -> bool:
        """Never: every row is predicted before it is trained on, and nothing is held out."""
        return False

    def validate(self) -> dict[str, float | None]:
        """No figures."""
        return {}

    @torch.no_grad()
    def test(self) -> dict[str, float | None]:
        """Metrics of the test part; unseen ids count with their initial rows and are not kept.

        Of further tasks the AUC is told, as `auc_<name of the label>`; of lists of candidates how high the click is.
        """
        log = self.log
        tasks = [self._metrics(ClickMetrics()) for _ in log.source.schema.labels]
        lists = None if log.candidates is None else self._metrics(ListMetrics(log.candidates))
        self.model.eval()
        stream = self._batches(self.train_rows, log.source.rows, _TEST_BATCH)
        ahead = announced(
            stream,
            lambda batch, steps: self.lookahead(batch, steps=steps),
            self.config.store,
        )
        for batch in ahead:
            with self.rows.reading():
                logits = self.predict(batch)
            for task, metrics in enumerate(tasks):
                metrics.update(*_of_task(task, logits, batch.labels))
            if lists is not None:
                lists.update(*_of_task(0, logits, batch.labels))
        self.model.train()
        names = log.source.schema.tasks
        others = {
            f"auc_{name}": metrics.compute()["auc"]
            for name, metrics in zip(names, tasks[1:], strict=True)
        }
        return tasks[0].compute() | others | ({} if lists is None else lists.compute())

    def about(self) -> dict[str, Any]:
        """Scores of the teacher, if the log is generated, and the sizes of its parts."""
        path = self.config.data.path
        return {
            "teacher": None if path is None else teacher_scores(path, self.train_rows),
            "run": {
                "train_rows": self.train_rows,
                "test_rows": self.log.source.rows - self.train_rows,
            },
        }

    def _logits(self, model: Callable[..., Tensor], batch: ClickBatch, rows: Any) -> Tensor:
        """Logits on the device, float32, by a model that takes these rows beside the rest of a batch."""
        rest = [batch.dense] if batch.lengths is None else [batch.dense, batch.lengths]
        dense, *lengths = (tensor.to(self.device) for tensor in rest)
        with dense_precision(self.config.train, self.device):
            return model(dense, rows, *lengths).float()

    def _batches(self, start: int, stop: int, batch: int) -> Iterator[ClickBatch]:
        return batches(self.log.source, self.log.way, start=start, stop=stop, batch=batch)

    def _metrics(self, metrics: _M) -> _M:
        """Metrics of all rows, given metrics of those seen here."""
        return metrics


@contextmanager
def open_clicks(config: Config, console: Console, threads: int) -> Generator[ClickTask]:
    """The click model of the settings, with its store open."""
    log = Log.open(config, console)
    if config.train.plain:
        optimizer = row_optimizer(config.rows)
        opened = plain_rows(config, log.source, way=log.way, threads=threads, optimizer=optimizer)
    else:
        opened = stored_rows(
            config,
            log.source,
            way=log.way,
            threads=threads,
            identity=log.identity,
            console=console,
        )
    with opened as rows:
        yield ClickTask(config, log, rows)


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
        tested = source.rows - sequences.train_rows
        if tested <= 0 or tested % sequences.candidates:
            raise ConfigError(
                f"{config.data.path} has {source.rows} rows, but its lists of {sequences.candidates} candidates begin at "
                f"row {sequences.train_rows}: a file of it is missing or not whole, make the log again"
            )
        return sequences.train_rows
    train_rows = source.rows - source.rows // 5 if asked is None else asked
    if train_rows > source.rows or train_rows == 0:
        raise ConfigError(
            f"data.train_rows = {train_rows}, but {config.data.path} has {source.rows} rows"
        )
    return train_rows
