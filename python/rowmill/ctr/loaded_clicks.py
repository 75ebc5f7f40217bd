"""A trained click model, read without its training data: scores and metrics of other logs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill._extras import extra
from rowmill.config.setting import ConfigError
from rowmill.ctr.click_model import build_model
from rowmill.ctr.data import FullIds, HashedIds, IdWay, Schema, Vocabulary, batches, open_source
from rowmill.ctr.data.features import MISSING_VOCABULARY_ID, hash_features
from rowmill.ctr.data.schema import schema_from
from rowmill.ctr.data.sequences import load_sequences
from rowmill.ctr.data.source import columns_of
from rowmill.ctr.data.text_ids import with_integer_ids
from rowmill.ctr.identity import FirstRows
from rowmill.ctr.metrics import TestMetrics
from rowmill.ctr.rows import Columns, pooled_dtype, stored_features
from rowmill.ctr.task import TEST_BATCH
from rowmill.errors import StoreCorrupt
from rowmill.nn import StackedBags, load_dense_state_dict
from rowmill.saved.loaded_run import LoadedRun, Scored
from rowmill.train.backend import CPU
from rowmill.train.dense import dense_optimizer, dense_precision
from rowmill.train.identity import CHECKSUM, DATA_ROWS, TRAIN_ROWS
from rowmill.train.state import dense_parameters

with extra("train"):
    import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.ctr.click_model import ClickModel
    from rowmill.ctr.data import ClickBatch, Source
    from rowmill.saved.saved_run import SavedRun
    from rowmill.store import Store

# pyarrow has no types for these calls.
_arrow: Any = pa


class LoadedClicks(LoadedRun):
    """A click model. `transform` takes the columns of the run's log, as a file or as an Arrow, polars or pandas table.

    `scored` takes a Parquet or TSV file, or a folder of them; a Parquet file may lack the labels. Part "all" is every row;
    "test" the rows after the training rows, if the log is the log of the run. Columns of the scores: `score`
    (probability of a click), `score_<label>` for every further task, and the labels if the log has them.

    Attributes:
        schema: The columns of its log.
        way: How raw ids become row ids.
    """

    parts = ("all", "test")

    def __init__(self, saved: SavedRun, data: Path | None = None) -> None:
        if data is not None:
            raise ConfigError(
                f"{saved.folder} holds a click model, which needs no graph: drop --graph (data= of rowmill.load)"
            )
        super().__init__(saved)
        self.schema, self.way = click_columns(saved)
        self.dropped = frozenset(dict(self.schema.dropped))

    @property
    def model(self) -> ClickModel:
        """Logits `[B]` or `[B, T]`, called as `model(dense, ids)` or `model(dense, ids, lengths)`."""
        return self._model

    @cached_property
    def _model(self) -> ClickModel:
        return click_model(self.saved, self.saved.store)

    def transform(self, raw: Any) -> tuple[Tensor, ...]:
        """Numeric features float32 `[B, N]`, ids int64 `[B, S]` and, with histories, their lengths int64 `[B]`."""
        found = list(self._unlabelled(raw))
        dense, ids = (torch.cat([getattr(b, name) for b in found]) for name in ("dense", "ids"))
        lengths = [batch.lengths for batch in found if batch.lengths is not None]
        return (dense, ids, torch.cat(lengths)) if lengths else (dense, ids)

    def predict(self, raw: Any) -> Tensor:
        """Probabilities of clicks, float32 `[B]`, or `[B, T]` for several tasks."""
        found = [logits.sigmoid() for _, logits in self._logits(self._unlabelled(raw))]
        return torch.cat(found)

    def scored(self, data: Path, part: str | None = None) -> Iterator[Scored]:
        """Scores of a log; see the class."""
        part = self.chosen_part(part, "all")
        schema, labels = _present(data, self.schema)
        source = open_source(data, schema)
        scores = ["score", *(f"score_{name}" for name in self.schema.tasks)]
        for batch, logits in self._logits(self._batches(source, self._start(source, part))):
            found = logits.sigmoid()
            columns = _columns(scores, found)
            if labels:
                columns |= _columns(labels, batch.labels)
            yield Scored(found.numpy(), columns)

    def evaluate(self, data: Path, part: str | None = None) -> dict[str, float | None]:
        """AUC, logloss and normalized entropy; `auc_<label>` of further tasks, HR@10 and NDCG@10 of a log of sequences.

        Without `part`: of the log of the run the rows after its training rows, of any other log every row. Metrics of lists of
        candidates are of part "test" of the folder that `rowmill data sequences` has made.
        """
        source = open_source(data, self.schema)
        identity = self.saved.identity
        own = (source.rows, FirstRows(source).check()) == (
            identity[DATA_ROWS],
            identity[CHECKSUM],
        )
        part = self.chosen_part(part, "test" if own else "all")
        sequences = load_sequences(data) if part == "test" and data.is_dir() else None
        metrics = TestMetrics(self.schema.tasks, sequences.candidates if sequences else None)
        for batch, logits in self._logits(self._batches(source, self._start(source, part))):
            metrics.update(logits, batch.labels)
        return metrics.compute()

    def names_of(self, table: str, ids: NDArray[np.int64]) -> Mapping[str, Any]:
        """With a vocabulary: `value`, the raw id of each row; null for missing values and for all others."""
        if not isinstance(self.way, Vocabulary):
            return {}
        known = self.way.values[self.schema.ids.index(table)]
        # The ids before the known values are of missing values and of all others.
        places = ids - MISSING_VOCABULARY_ID - 1
        values = known[np.maximum(places, 0)] if len(known) else np.zeros(len(ids), np.int64)
        return {"value": _arrow.array(values, mask=places < 0)}

    @torch.no_grad()
    def _logits(self, stream: Iterator[ClickBatch]) -> Iterator[tuple[ClickBatch, Tensor]]:
        """Batches with their logits, float32 `[B]` or `[B, T]`: those of the trainer's test."""
        for batch in stream:
            lengths = [] if batch.lengths is None else [batch.lengths]
            with self.threads(), precision_of(self.config):
                logits = self.model(batch.dense, batch.ids, *lengths).float()
            yield batch, logits

    def _unlabelled(self, raw: Any) -> Iterator[ClickBatch]:
        if isinstance(raw, str | Path):
            source = open_source(raw, _present(Path(raw), self.schema)[0])
        else:
            schema = _without_labels(self.schema)
            source = open_source(with_integer_ids(raw, schema), schema)
        return self._batches(source, 0)

    def _batches(self, source: Source, start: int) -> Iterator[ClickBatch]:
        return batches(source, self.way, start=start, stop=source.rows, batch=TEST_BATCH)

    def _start(self, source: Source, part: str) -> int:
        if part == "all":
            return 0
        trained, rows = self.saved.identity[TRAIN_ROWS], self.saved.identity[DATA_ROWS]
        if source.rows != rows:
            raise ConfigError(
                f"--part test needs the log of the run, which has {rows:,} rows, got one of {source.rows:,}: pass that log, "
                "or drop --part to take every row"
            )
        return trained


def click_columns(saved: SavedRun) -> tuple[Schema, IdWay]:
    """The columns of the log of a run, and how its raw ids become row ids."""
    schema = schema_from(saved.file("schema"))
    return schema, _way(saved.config, schema, saved.file("vocabulary"))


def click_model(saved: SavedRun, store: Store) -> ClickModel:
    """The trained model of a run in eval mode, over the rows of a store."""
    schema, way = click_columns(saved)
    config = saved.config
    tables = [store.open_table(name) for name in schema.ids]
    features = stored_features(tables, Columns.of(schema, way))
    embeddings = StackedBags(features, output_dtype=pooled_dtype(config))
    model = build_model(config.model, embeddings, schema)
    # With split-bf16 the optimizer makes the weights bfloat16.
    dense_optimizer(config.train, dense_parameters(model), CPU)
    load_dense_state_dict(model, saved.weights)
    return model.eval()


def precision_of(config: Config) -> torch.autocast:
    """In which products are taken inside of it, as in training."""
    return dense_precision(config.train, CPU)


def _present(data: Path, schema: Schema) -> tuple[Schema, list[str]]:
    """The schema without labels where the data has none of them."""
    present = columns_of(data)
    if present is None or any(name in present for name in schema.labels):
        return schema, schema.labels
    return _without_labels(schema), []


def _without_labels(schema: Schema) -> Schema:
    return replace(schema, label="", tasks=(), columns=())


def _columns(names: list[str], values: Tensor) -> dict[str, Any]:
    columns = values.reshape(len(values), -1).unbind(1)
    return {name: column.numpy() for name, column in zip(names, columns, strict=True)}


def _way(config: Config, schema: Schema, values: list[list[int]] | None) -> IdWay:
    match config.data.ids:
        case "full":
            return FullIds()
        case "hash":
            return HashedIds(config.data.buckets, hash_features(schema))
        case _:
            if values is None:
                raise StoreCorrupt(
                    "data.ids is vocabulary, but the checkpoint has no vocabulary: restore the folder from a copy"
                )
            known = tuple(np.array(column, np.int64) for column in values)
            return Vocabulary(known, tuple(schema.id_features))
