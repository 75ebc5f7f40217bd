"""The identity of a run of `--task ctr`: the settings and data that must be equal when it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from rowmill.ctr.data.source import head
from rowmill.train.identity import CHECKSUM, DATA_ROWS, TRAIN_ROWS, identity_of

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.ctr.data import Source
    from rowmill.train.parts import Part

CHECKED_ROWS = 1024
"""Rows of data that its checksum is of."""
_LIKELY_ROWS = 32
"""Fewer equal rows may be chance, and training on them twice does little."""


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
        CHECKSUM: FirstRows(source).check(),
        "vocabulary": vocabulary,
        **{f"data.{key}": settings["data"][key] for key in ("ids", "buckets", "min_count")},
        **identity_of(config),
    }


class FirstRows:
    """The first rows of a log, at most `CHECKED_ROWS`, by whose checksums data is recognized.

    Attributes:
        rows: Number of rows of the log.
    """

    def __init__(self, source: Source) -> None:
        self.rows = source.rows
        self._blocks = list(source.blocks(0, min(source.rows, CHECKED_ROWS)))

    def check(self, rows: int = CHECKED_ROWS) -> str:
        """A checksum of the first `rows` of them."""
        check, left = 0, rows
        for block in self._blocks:
            if left <= 0:
                break
            of = head(block, left)
            left -= len(of)
            for values in (of.labels, of.dense, of.ids):
                check = crc32(values.tobytes(), check)
        return f"{check:08x}"

    def begin_with(self, part: Part) -> bool:
        """Whether they begin with the rows of a part of fewer rows than are checked."""
        is_short = _LIKELY_ROWS <= part.rows < min(self.rows, CHECKED_ROWS)
        return is_short and self.check(part.rows) == part.checksum
