"""`rowmill predict`: scores of a log by a trained click model, computed by the code of the trainer."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rowmill._extras import extra
from rowmill.ctr.data import batches, open_source
from rowmill.ctr.data.source import columns_of
from rowmill.ctr.saved_run import SavedRun
from rowmill.ctr.task import TEST_BATCH
from rowmill.errors import InvalidInput
from rowmill.files import writing
from rowmill.train.machine import step_threads

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rowmill.ctr.data import ClickBatch, Schema
    from rowmill.store import Store


# pyarrow has no types for these calls.
_arrow: Any = pa


def predict(run: Path, data: Path, out: Path) -> int:
    """Score every row of a log and write the scores as Parquet; returns the number of rows.

    Args:
        run: Folder of a run of `rowmill train --task ctr`; its last checkpoint is read.
        data: Parquet or TSV file, or a folder of them, with the columns of the run. A Parquet file may lack the labels.
        out: File to write, in the order of the input: `score` (probability of a click, float32), `score_<label>` for
            every further task, and the label columns if `data` has them. It must not exist.

    Raises:
        DataError: A value of `data` cannot be read; names file, row and column.
        InvalidInput: Something is at `out`.
    """
    if out.exists():
        raise InvalidInput(f"--out {out} exists: remove it, or give another path")
    saved = SavedRun.open(run)
    schema, labels = _present(data, saved.schema)
    source = open_source(data, schema)
    torch.set_num_threads(step_threads(saved.config))
    names = ["score", *(f"score_{name}" for name in saved.schema.tasks)]
    fields = [*names, *labels]
    unfinished = out.with_name(f".{out.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(dir=out.parent) as folder, writing(unfinished):
        try:
            with (
                saved.rows(Path(folder) / "rows") as store,
                pq.ParquetWriter(unfinished, _schema_of(fields)) as writer,
            ):
                stream = batches(source, saved.way, start=0, stop=source.rows, batch=TEST_BATCH)
                for batch, logits in scored(saved, store, stream):
                    columns = _columns(logits.sigmoid())
                    if labels:
                        columns += _columns(batch.labels)
                    writer.write_table(_arrow.table(dict(zip(fields, columns, strict=True))))
            unfinished.rename(out)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    return source.rows


@torch.no_grad()
def scored(
    saved: SavedRun, store: Store, stream: Iterator[ClickBatch]
) -> Iterator[tuple[ClickBatch, Tensor]]:
    """Batches with their logits, float32 [B] or [B, T]: those of the trainer's test."""
    model = saved.model(store)
    for batch in stream:
        lengths = [] if batch.lengths is None else [batch.lengths]
        with saved.precision():
            logits = model(batch.dense, batch.ids, *lengths).float()
        yield batch, logits


def _present(data: Path, schema: Schema) -> tuple[Schema, list[str]]:
    """The schema without labels where the data has none of them."""
    present = columns_of(data)
    if present is None or any(name in present for name in schema.labels):
        return schema, schema.labels
    return replace(schema, label="", tasks=(), columns=()), []


def _schema_of(fields: list[str]) -> Any:
    return _arrow.schema([(name, _arrow.float32()) for name in fields])


def _columns(values: Tensor) -> list[Any]:
    columns = values.reshape(len(values), -1).unbind(1)
    return [_arrow.array(column.numpy()) for column in columns]
