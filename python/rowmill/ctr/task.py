"""The task `ctr`: a click model, trained on the first rows of a log in order, tested on the rest.

A forward makes one fused lookup; the dense half has a torch optimizer. Every batch is predicted before it is trained
on, so in the first epoch the training curves show predictions of unseen rows.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rowmill.config.setting import ConfigError
from rowmill.ctr.changed_columns import ChangedColumns, known_columns
from rowmill.ctr.click_model import build_model, schema_for
from rowmill.ctr.data import CRITEO, Vocabulary, batches, id_way, load_schema, open_source
from rowmill.ctr.data.generate import TEACHER_FILE, generate, generated_schema, teacher_scores
from rowmill.ctr.data.sequences import SEQUENCES_FILE, load_sequences, make_sequences
from rowmill.ctr.data.source import NoRows, check_log, is_log_name
from rowmill.ctr.identity import FirstRows, click_identity
from rowmill.ctr.metrics import ClickMetrics, TestMetrics, of_label
from rowmill.ctr.models import DIEN
from rowmill.ctr.rows import plain_rows, stored_rows, table_sizes
from rowmill.ctr.saved_columns import SavedColumns
from rowmill.errors import DataError
from rowmill.train.backend import CPU
from rowmill.train.dense import dense_optimizer, dense_precision
from rowmill.train.ending import Ending
from rowmill.train.identity import CHECKSUM, unknown_data
from rowmill.train.rows import row_optimizer
from rowmill.train.state import dense_parameters
from rowmill.train.task import announced

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.ctr.data import ClickBatch, IdWay, Schema, Source
    from rowmill.ctr.data.sequences import Sequences
    from rowmill.ctr.rows import ClickRows
    from rowmill.train.parts import Part

TEST_BATCH = 4096
_M = TypeVar("_M")


@dataclass(frozen=True)
class Log:
    """The log of a run.

    Attributes:
        source: The rows.
        way: The mapping from values to ids.
        train_rows: Number of training rows, from the first.
        candidates: For a log of sequences, the number of test rows per list of candidates; else None.
        identity: Settings and properties of the log that must be equal when a run resumes.
        saved: The description of the log in the checkpoint of a continued run.
        change: How the columns of the log change, if they do.
        sizes: The number of ids of each table; None: any 64-bit id.
    """

    source: Source
    way: IdWay
    train_rows: int
    candidates: int | None
    identity: dict[str, Any]
    saved: SavedColumns | None
    change: ChangedColumns | None
    sizes: dict[str, int | None]

    @classmethod
    def open(cls, config: Config, console: Console) -> Log:
        """Open the log of the settings; generate it first if the settings ask for it.

        With `data.follow`, a log without rows, until `ClickTask.take` opens a file.
        """
        if config.data.follow:
            if config.data.path is None or not config.data.path.is_dir():
                raise ConfigError(
                    f"data.path = {str(config.data.path)!r} is not a folder, but --follow takes the files that arrive in "
                    "one: create it, or drop --follow"
                )
            saved = SavedColumns.found(config)
            schema, change = _of_run(config, saved, _schema(config, None, saved))
            source = NoRows(schema)
            if saved is not None and config.data.ids == "vocabulary":
                way = _saved_vocabulary(config, saved, schema)
            else:
                way = id_way(
                    config.data.ids, source, train_rows=0, buckets=config.data.buckets, min_count=1
                )
            identity = click_identity(config, source, train_rows=0, vocabulary=None)
            sizes = _sizes(config, saved, schema, way)
            return cls(source, way, 0, None, unknown_data(identity), saved, change, sizes)
        path, sequences = _find_data(config, console)
        saved = SavedColumns.found(config)
        schema, change = _of_run(config, saved, _schema(config, sequences, saved))
        known = None if saved is None else saved.known(path, schema)
        if known is None:
            source = open_source(path, schema)
        elif saved is not None and not known.is_current and known.rows == known.part.rows:
            # Nothing is to be done: whatever the columns of the data are, the run stays as it is.
            source, change = NoRows(saved.schema, known.rows), None
        else:
            source = NoRows(schema, known.rows)
        train_rows = _train_rows(config, source, sequences)
        min_count = config.data.min_count
        has_parts = config.train.continues or (saved is not None and len(saved.parts) > 1)
        if has_parts and config.data.ids == "vocabulary":
            way = _saved_vocabulary(config, saved, source.schema)
            way = way.grown(source, rows=train_rows, min_count=min_count)
        else:
            way = id_way(
                config.data.ids,
                source,
                train_rows=train_rows,
                buckets=config.data.buckets,
                min_count=min_count,
            )
        identity = click_identity(
            config, source, train_rows=train_rows, vocabulary=way.fingerprint()
        )
        if known is not None:
            identity[CHECKSUM] = known.part.checksum
        candidates = None if sequences is None else sequences.candidates
        sizes = _sizes(config, saved, source.schema, way)
        return cls(source, way, train_rows, candidates, identity, saved, change, sizes)


class ClickTask:
    """A click model and its log.

    Attributes:
        device: Device of the dense half. Batches and returned predictions are on the CPU.
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
        self.change = log.change
        torch.manual_seed(config.train.seed)
        # Draw weights on the CPU, so that equal seeds give equal weights on every device.
        self.model = build_model(config.model, rows.embeddings, log.source.schema).to(device)
        self.optimizer = dense_optimizer(config.train, dense_parameters(self.model), device)
        self.window = self._metrics(ClickMetrics())

    def batches(self, epoch: int, start: int) -> Iterator[ClickBatch]:
        """The training rows from `start` on, in the order of the log in every epoch."""
        return self._batches(start, self.train_rows, self.config.train.batch)

    def takes(self, name: str) -> bool:
        """Whether a file of this name in a folder that is followed holds rows."""
        return is_log_name(name)

    def take(self, file: Path) -> None:
        """Train on all rows of this file from now on.

        Raises:
            DataError: It begins with the rows of an earlier part, which had other columns, and has more rows.
        """
        schema, saved = self.log.source.schema, self.log.saved
        known = None if saved is None else saved.known(file, schema)
        if known is not None and known.rows != known.part.rows:
            # Its rows would not be read, and not be trained on.
            raise DataError(
                f"{file} ({known.rows:,} rows) begins with the rows of {known.part.data or 'the first data of the run'} "
                f"({known.part.rows:,} rows), which were trained on: leave only the new rows in it"
            )
        source = open_source(file, schema) if known is None else NoRows(schema, known.rows)
        rows, way = source.rows, self.log.way
        if isinstance(way, Vocabulary):
            way = way.grown(source, rows=rows, min_count=self.config.data.min_count)
        self.identity = click_identity(
            self.config, source, train_rows=rows, vocabulary=way.fingerprint()
        )
        if known is not None:
            self.identity[CHECKSUM] = known.part.checksum
        self.log = replace(
            self.log, source=source, way=way, train_rows=rows, identity=self.identity
        )
        self.train_rows = rows

    def begins_with(self, parts: Sequence[Part]) -> int | None:
        """The number, from 1, of the part with whose first rows the data begins; None if there is none."""
        first = FirstRows(self.log.source)
        for number, part in enumerate(parts, 1):
            if part.checksum == self.identity[CHECKSUM] or first.begin_with(part):
                return number
        return None

    def ending(self) -> Ending:
        """The end of a run that follows a folder."""
        return Ending()

    def lookahead(self, batch: ClickBatch, *, steps: int) -> None:
        """Prefetch the rows of a batch."""
        self.rows.lookahead(batch.ids, steps=steps)

    def look_up(self, batch: ClickBatch) -> Tensor:
        """The pooled vectors of a batch, `[B, S, D]`."""
        return self.rows.embeddings(self.rows.inputs(batch.ids))

    def loss(self, batch: ClickBatch, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the predicted clicks (plus a DIEN's auxiliary loss), and the logits on the CPU."""
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
        """Logits of a batch, `[B]`, or `[B, T]` for several tasks."""
        return self._logits(self.model, batch, self.rows.inputs(batch.ids)).cpu()

    def observe(self, batch: ClickBatch, predicted: Tensor) -> None:
        """Add the logits of a batch to the metrics of the window."""
        self.window.update(*of_label(0, predicted, batch.labels))

    def validates(self, epochs: int) -> bool:
        """False: the task has no validation split."""
        return False

    def validate(self) -> dict[str, float | None]:
        """Empty: the task has no validation split."""
        return {}

    @torch.no_grad()
    def test(self) -> dict[str, float | None]:
        """Metrics on the test rows. Unseen ids use their initial values, and no row is created for them.

        Further tasks add their AUC, as `auc_<name of the label>`. Lists of candidates add HR@10 and NDCG@10.
        """
        log = self.log
        metrics = TestMetrics(log.source.schema.tasks, log.candidates, self._metrics)
        self.model.eval()
        stream = self._batches(self.train_rows, log.source.rows, TEST_BATCH)
        ahead = announced(
            stream,
            lambda batch, steps: self.lookahead(batch, steps=steps),
            self.config.store,
        )
        for batch in ahead:
            with self.rows.reading():
                logits = self.predict(batch)
            metrics.update(logits, batch.labels)
        self.model.train()
        return metrics.compute()

    def described(self) -> dict[str, Any]:
        """The schema of the log, and its vocabulary if there is one."""
        log = self.log
        schema = log.source.schema
        said: dict[str, Any] = {"schema": schema.as_dict()}
        if isinstance(log.way, Vocabulary):
            said["vocabulary"] = [known.tolist() for known in log.way.values]
            before = {} if log.saved is None else log.saved.vocabulary
            dropped = {name: before[name].tolist() for name, _ in schema.dropped if name in before}
            if dropped:
                said["dropped vocabulary"] = dropped
        return said

    def about(self) -> dict[str, Any]:
        """The teacher's metrics, if the log is generated, and the numbers of training and test rows."""
        path = self.config.data.path
        return {
            "teacher": None
            if path is None or self.config.data.follow
            else teacher_scores(path, self.train_rows),
            "run": {
                "train_rows": self.train_rows,
                "test_rows": self.log.source.rows - self.train_rows,
            },
        }

    def _logits(self, model: Callable[..., Tensor], batch: ClickBatch, rows: Any) -> Tensor:
        """Logits of a batch, float32, on the device; `rows` is the argument for embeddings that `model` takes."""
        rest = [batch.dense] if batch.lengths is None else [batch.dense, batch.lengths]
        dense, *lengths = (tensor.to(self.device) for tensor in rest)
        with dense_precision(self.config.train, self.device):
            return model(dense, rows, *lengths).float()

    def _batches(self, start: int, stop: int, batch: int) -> Iterator[ClickBatch]:
        return batches(self.log.source, self.log.way, start=start, stop=stop, batch=batch)

    def _metrics(self, metrics: _M) -> _M:
        """Extend metrics of this process's rows to all rows; here the same, overridden for many ranks."""
        return metrics


@contextmanager
def open_clicks(config: Config, console: Console, threads: int) -> Generator[ClickTask]:
    """Open the task of the settings, with its store."""
    log = Log.open(config, console)
    if config.train.plain:
        optimizer = row_optimizer(config.rows)
        opened = plain_rows(config, log.source, way=log.way, threads=threads, optimizer=optimizer)
    else:
        opened = stored_rows(
            config,
            log.source,
            way=log.way,
            sizes=log.sizes,
            threads=threads,
            identity=log.identity,
            console=console,
        )
    with opened as rows:
        yield ClickTask(config, log, rows)


def _find_data(config: Config, console: Console) -> tuple[Path, Sequences | None]:
    """The path of the log of the settings, which is made first if they ask for it."""
    path = config.data.path
    if path is None:
        raise ConfigError("data.path is not set: pass the click log with --data")
    if config.generate is not None and not (path / TEACHER_FILE).exists():
        console.print(
            f"Generating {config.generate.rows:,} rows in {path}", highlight=False, markup=False
        )
    if config.generate is not None:
        generate(path, config.generate)
    if config.sequences is not None:
        if not (path / SEQUENCES_FILE).exists():
            console.print(f"Making a log of sequences in {path}", highlight=False, markup=False)
        make_sequences(path, config.sequences)
    check_log(path)  # Before the columns that the model needs: a missing log has none.
    return path, load_sequences(path) if config.data.schema is None else None


def _schema(config: Config, sequences: Sequences | None, saved: SavedColumns | None) -> Schema:
    """The columns of the log of the settings."""
    if config.data.schema is not None:
        return load_schema(config.data.schema)
    if sequences is not None:
        return sequences.schema
    if config.generate is not None:
        return generated_schema(config.generate)
    if config.train.continues and saved is not None:
        return saved.schema
    return CRITEO


def _of_run(
    config: Config, saved: SavedColumns | None, given: Schema
) -> tuple[Schema, ChangedColumns | None]:
    """The columns of a log that the model uses, in the order of the continued run, and how they change."""
    schema = schema_for(config.model, given)
    if saved is None:
        return schema, None
    schema = known_columns(config.model, saved.schema, schema)
    if not config.train.continues:
        if schema.names == saved.schema.names and schema.dense != saved.schema.dense:
            raise ConfigError(
                f"cannot resume: numeric columns were {list(saved.schema.dense)} and are {list(schema.dense)}; use the "
                "columns of the first run, or start a new run with another --out"
            )
        return schema, None
    return schema, ChangedColumns.between(config.model, saved.schema, schema)


def _saved_vocabulary(config: Config, saved: SavedColumns | None, schema: Schema) -> Vocabulary:
    """The vocabulary of the run that is continued, for these columns."""
    if saved is None or not saved.vocabulary:
        raise ConfigError(
            f"cannot continue: data.ids is 'vocabulary', but the run in {config.train.out} has none: drop --ids"
        )
    nothing = np.empty(0, np.int64)
    values = tuple(saved.vocabulary.get(name, nothing) for name in schema.ids)
    return Vocabulary(values, tuple(schema.id_features))


def _sizes(
    config: Config, saved: SavedColumns | None, schema: Schema, way: IdWay
) -> dict[str, int | None]:
    """The number of ids of each table; None: any 64-bit id, as in tables whose vocabulary grows while they are open.

    Raises:
        ConfigError: The vocabulary would grow while tables are open that have a fixed number of ids.
    """
    sizes = table_sizes(schema, way)
    if not isinstance(way, Vocabulary):
        return sizes
    tables = {} if saved is None else saved.tables
    for name in sizes:
        if config.data.follow and tables.get(name) is not None:
            raise ConfigError(
                f"data.ids = 'vocabulary' does not work with --follow in this run: table {name} has a fixed number of ids, "
                f"{tables[name]:,}, because the run began with a file. Give each file with --continue, or begin a new run "
                "with --follow"
            )
        if tables[name] is None if name in tables else config.data.follow:
            sizes[name] = None
    return sizes


def _train_rows(config: Config, source: Source, sequences: Sequences | None) -> int:
    asked = config.data.train_rows
    if sequences is not None:
        if asked not in (None, sequences.train_rows):
            raise ConfigError(
                f"data.train_rows = {asked}, but the log of sequences {config.data.path} fixes it at "
                f"{sequences.train_rows}: drop --train-rows"
            )
        tested = source.rows - sequences.train_rows
        if tested <= 0 or tested % sequences.candidates:
            raise ConfigError(
                f"{config.data.path} has {source.rows} rows, which do not fit lists of {sequences.candidates} candidates "
                f"from row {sequences.train_rows} on: a file is missing or incomplete; make the log again"
            )
        return sequences.train_rows
    train_rows = source.rows - source.rows // 5 if asked is None else asked
    if train_rows > source.rows or train_rows == 0:
        raise ConfigError(
            f"data.train_rows must be from 1 to the number of rows of {config.data.path}, {source.rows}, got {train_rows}"
        )
    return train_rows
