"""The identity of a run of `--task ctr`: what must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from rowmill.train.identity import CHECKSUM, DATA_ROWS, TRAIN_ROWS, identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.ctr.data import Source

_CHECKED_ROWS = 1024


def click_identity(
    config: Config, source: Source, *, train_rows: int, vocabulary: str | None
) -> dict[str, Any]:
    """The settings of a click model and the checksums of its log, by name."""
    settings = config.as_dict()
    return {
        "columns": source.schema.names,
        # None without histories, as in checkpoints older than histories.
        "histories": [*source.schema.histories, source.schema.places]
        if source.schema.histories
        else None,
        "item_ids": source.schema.item_ids if config.model.kind == "two_tower" else None,
        DATA_ROWS: source.rows,
        TRAIN_ROWS: train_rows,
        CHECKSUM: check_of_first_rows(source),
        "vocabulary": vocabulary,
        **{f"data.{key}": settings["data"][key] for key in ("ids", "buckets", "min_count")},
        **identity_of(config),
    }


def check_of_first_rows(source: Source) -> str:
    """A checksum that detects another log with the same number of rows."""
    check = 0
    for block in source.blocks(0, min(source.rows, _CHECKED_ROWS)):
        for values in (block.labels, block.dense, block.ids):
            check = crc32(values.tobytes(), check)
    return f"{check:08x}"
