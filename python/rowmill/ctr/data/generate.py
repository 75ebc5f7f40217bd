"""A generator of click logs with a known best possible AUC, and with ids that repeat as in production.

Rows look like Criteo's: a label, 13 counts (some missing) and 26 ids (never missing). A hidden model, the teacher, has
a logit for every id (a hash of the id), a weight for every count, and interactions of some pairs of features. The click
of a row is drawn with the probability of the summed logit. This random draw keeps even the teacher's AUC below 1; the
sidecar file ``teacher.json`` holds the teacher's metrics.

Every block of rows has a random stream of its own, so the log depends only on the settings and the seed. How ids repeat
is described in rowmill.ctr.data.locality.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rowmill._extras import extra
from rowmill.ctr.data.features import mix64
from rowmill.ctr.data.locality import IdLaw, fitted_law, zipf_law
from rowmill.ctr.data.schema import CRITEO, Schema
from rowmill.ctr.data.teacher import Teacher, TeacherScore
from rowmill.ctr.settings import GenerateConfig
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.parquet as pq

TEACHER_FILE = "teacher.json"
BLOCK_ROWS = 65_536
_FILE_BLOCKS = 16
_DENSE = 13

# Distinct ids per feature of the Criteo Kaggle log, as counted by the public DLRM preprocessing.
CRITEO_IDS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip

# Counts are floor(exp(normal)); means, spreads and missing shares follow the first columns of the Criteo log loosely.
_COUNT_LOG_MEAN = np.array(
    [0.8, 2.2, 2.4, 1.8, 7.5, 3.8, 2.0, 2.3, 4.0, 0.2, 0.8, 0.3, 1.9], dtype=np.float32
)
_COUNT_LOG_STD = np.array(
    [0.9, 1.8, 1.2, 0.9, 1.8, 1.4, 1.1, 0.9, 1.3, 0.4, 0.6, 0.5, 0.9], dtype=np.float32
)
_COUNT_MISSING = np.array(
    [0.45, 0.0, 0.2, 0.2, 0.05, 0.25, 0.05, 0.0, 0.05, 0.45, 0.05, 0.75, 0.2], dtype=np.float32
)  # fmt: skip


@dataclass(frozen=True)
class RawLog:
    """One block: counts ``[n, 13]`` int32, their mask of missing values, F id columns ``[n]``, labels, true logits."""

    counts: NDArray[np.int32]
    missing: NDArray[np.bool_]
    ids: list[NDArray[np.int64]]
    labels: NDArray[np.int8]
    logits: NDArray[np.float32]


def id_laws(settings: GenerateConfig) -> list[IdLaw]:
    """The distribution of ids of every table."""
    sizes = [
        settings.rows_per_table or CRITEO_IDS[t % len(CRITEO_IDS)] for t in range(settings.tables)
    ]
    return [
        fitted_law(size) if settings.zipf is None else zipf_law(size, settings.zipf)
        for size in sizes
    ]


def generate(out: Path, settings: GenerateConfig) -> Path:
    """Write the log as Parquet files into ``out``, with a sidecar file of the teacher's metrics; return its path.

    An existing log with the same settings is kept. An existing log with other settings raises `DataError`.
    """
    sidecar, marker = out / TEACHER_FILE, out / ".unfinished"
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file, but a log is a folder: choose another --out")
    if sidecar.exists():
        if _read_sidecar(sidecar).get("settings") == asdict(settings):
            # A command that was killed at its very end has left it.
            marker.unlink(missing_ok=True)
            return sidecar
        raise DataError(
            f"{out} holds a log generated with other settings: choose another --out, or delete the folder"
        )
    if any(out.glob("*.parquet")) and not marker.exists():
        raise DataError(
            f"{out} holds Parquet files that rowmill did not generate: choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    # Of an interrupted command, which may have had other settings.
    for part in out.glob("part-*.parquet"):
        part.unlink()
    marker.touch()
    everything, last_fifth = TeacherScore(), TeacherScore()
    test_from = settings.rows - settings.rows // 5
    row = 0
    writer: pq.ParquetWriter | None = None
    try:
        for number, block in enumerate(log_blocks(settings)):
            table = _arrow(block)
            if number % _FILE_BLOCKS == 0:
                if writer is not None:
                    writer.close()
                writer = _writer(
                    out / f"part-{number // _FILE_BLOCKS:05d}.parquet", table.schema, settings
                )
            assert writer is not None
            writer.write_table(table, row_group_size=BLOCK_ROWS)
            everything.add(block.logits, block.labels)
            lo = max(test_from - row, 0)
            last_fifth.add(block.logits[lo:], block.labels[lo:])
            row += len(block.labels)
    finally:
        if writer is not None:
            writer.close()
    content = {
        "settings": asdict(settings),
        "rows": settings.rows,
        "all": everything.result(),
        "last_fifth": {"from_row": test_from, **last_fifth.result()},
    }
    unfinished = out / f".{TEACHER_FILE}"
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(sidecar)
    marker.unlink()
    return sidecar


def teacher_scores(data: Path, train_rows: int) -> dict[str, float | None] | None:
    """The teacher's metrics on a generated log: on its last fifth if that is the test set, else on all rows."""
    sidecar = data / TEACHER_FILE
    if not sidecar.is_file():
        return None
    content = _read_sidecar(sidecar)
    try:
        part = "last_fifth" if content["last_fifth"]["from_row"] == train_rows else "all"
        return {name: content[part][name] for name in ("auc", "logloss", "ne")}
    except (KeyError, TypeError):
        raise DataError(_foreign(sidecar)) from None


def _read_sidecar(sidecar: Path) -> dict[str, Any]:
    try:
        content = json.loads(sidecar.read_text(encoding="utf-8"))
    except ValueError:
        raise DataError(_foreign(sidecar)) from None
    if not isinstance(content, dict):
        raise DataError(_foreign(sidecar))
    return content


def _foreign(sidecar: Path) -> str:
    return f"{sidecar} does not hold the metrics of a teacher: delete it, or generate the log again"


def generated_schema(settings: GenerateConfig) -> Schema:
    """The columns of a generated log."""
    return replace(CRITEO, ids=tuple(f"C{t + 1}" for t in range(settings.tables)), columns=())


def table_ids(settings: GenerateConfig, table: int) -> NDArray[np.int64]:
    """All ids that a table of the log may have; within each piece of the distribution, most frequent first."""
    ranks = np.arange(id_laws(settings)[table].ids, dtype=np.int64)
    return _ids_of_ranks(ranks, seed=settings.seed, table=table)


def log_blocks(settings: GenerateConfig) -> Iterator[RawLog]:
    """The blocks of a log, in order."""
    teacher = Teacher(seed=settings.seed, tables=settings.tables, dense=_DENSE)
    laws = id_laws(settings)
    bias: float | None = None
    for number in range(-(-settings.rows // BLOCK_ROWS)):
        rows = min(BLOCK_ROWS, settings.rows - number * BLOCK_ROWS)
        stream = np.random.Generator(
            np.random.SFC64(np.random.SeedSequence([settings.seed, number]))
        )
        counts, missing, logs = _counts(stream, rows)
        ids: list[NDArray[np.int64]] = []
        popular: list[NDArray[np.bool_]] = []
        for table, law in enumerate(laws):
            ranks = law.ranks(stream.random(rows))
            ids.append(_ids_of_ranks(ranks, seed=settings.seed, table=table))
            popular.append(law.popular(ranks))
        logits = teacher.logits(logs, ids, popular)
        if bias is None:
            bias = teacher.bias_for(logits)
        logits += np.float32(bias)
        clicked = stream.random(rows, dtype=np.float32) < 1.0 / (1.0 + np.exp(-logits))
        yield RawLog(counts, missing, ids, clicked.astype(np.int8), logits)


def _counts(
    stream: np.random.Generator, rows: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.float32]]:
    normal = stream.standard_normal((rows, _DENSE), dtype=np.float32)
    counts = np.exp(normal * _COUNT_LOG_STD + _COUNT_LOG_MEAN).astype(np.int32)
    missing = stream.random((rows, _DENSE), dtype=np.float32) < _COUNT_MISSING
    # The teacher's input: the standardised log count, 0 if missing.
    logs = np.where(
        missing,
        np.float32(0),
        (np.log(counts.astype(np.float32) + 1) - _COUNT_LOG_MEAN) / _COUNT_LOG_STD,
    )
    return counts, missing, logs


def _ids_of_ranks(ranks: NDArray[np.int64], *, seed: int, table: int) -> NDArray[np.int64]:
    """Map ranks to 64-bit ids by a hash that differs between tables."""
    salt = mix64(np.array([(seed << 20) + table + 1], dtype=np.uint64))
    return mix64(ranks.view(np.uint64) ^ salt).view(np.int64)


def _arrow(block: RawLog) -> pa.Table:
    columns: dict[str, pa.Array] = {"label": pa.array(block.labels)}
    for feature in range(_DENSE):
        columns[f"I{feature + 1}"] = pa.array(
            block.counts[:, feature], mask=block.missing[:, feature]
        )
    for feature, ids in enumerate(block.ids):
        columns[f"C{feature + 1}"] = pa.array(ids)
    return pa.table(columns)


def _writer(file: Path, schema: pa.Schema, settings: GenerateConfig) -> pq.ParquetWriter:
    # Dictionaries save space if values repeat inside a row group. Hashed 64-bit ids hardly compress: lz4 saves a fifth
    # of the bytes for twice the time.
    small = [f"C{t + 1}" for t, law in enumerate(id_laws(settings)) if law.ids <= BLOCK_ROWS // 4]
    dense = [f"I{f + 1}" for f in range(_DENSE)]
    dictionaries: Any = [*dense, *small]
    return pq.ParquetWriter(
        file,
        schema,
        compression="none",
        use_dictionary=dictionaries,
        write_statistics=False,
        write_page_checksum=True,
    )
