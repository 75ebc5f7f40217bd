"""The data parts of a run: the log that it trains on now, and those that it was trained on before.

`rowmill train --continue` begins the next part, once the current one is complete. Nothing of an earlier part is read: its
checksum and its number of rows, which every checkpoint holds, recognize it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError
from rowmill.train.identity import CHECKSUM, DATA_ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Part:
    """A part that a run has completed.

    Attributes:
        data: The path of its data, as given.
        rows: Number of its rows, held-out ones included.
        checksum: Checksum of its first rows.
        steps: Steps of the run at the end of the part.
        examples: Examples that the run was trained on at the end of the part, over all epochs and parts.
        test: Metrics on its held-out rows; of a followed file, those of all its rows, each predicted before training.
        file: The values of `rowmill.train.arrivals.TakenFile`, if it is a file of a followed folder.
        columns: If columns changed after this part, those that it and the parts before it have, as `Change.columns_before`.
    """

    data: str
    rows: int
    checksum: str
    steps: int
    examples: int
    test: dict[str, float | None]
    file: dict[str, Any] | None = None
    columns: dict[str, Any] | None = None

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Whether a run with this identity would train on the data of this part."""
        return (self.rows, self.checksum) == (identity[DATA_ROWS], identity[CHECKSUM])


def numbered(parts: Sequence[Part], identity: Mapping[str, Any]) -> int | None:
    """The number, from 1, of the part that has the data of an identity; None if there is none."""
    return next((n for n, part in enumerate(parts, 1) if part.is_of(identity)), None)


def check_new(parts: Sequence[Part], identity: Mapping[str, Any], data: str) -> None:
    """Raise `ConfigError` if new data begins with the rows of a part: these rows would be trained on again."""
    for number, part in enumerate(parts, 1):
        if part.checksum == identity[CHECKSUM]:
            raise ConfigError(
                f"cannot continue: {data} ({identity[DATA_ROWS]:,} rows) begins with the rows of part {number} of this "
                f"run, {part.data or 'its first data'} ({part.rows:,} rows), which would be trained on again: pass only "
                "the new rows with --data"
            )
