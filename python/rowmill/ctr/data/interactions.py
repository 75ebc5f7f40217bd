"""Who met which item when: reading such logs, and a generator of ones whose order means something.

A generated user likes some groups of items and drifts: what comes next depends on what came last. So a model that sees
the order has more to learn from than one that sees users and items alone.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rowmill.ctr.settings import SequencesConfig
from rowmill.errors import DataError

LIKED_FROM = 4.0
"""The least rating of an item that was liked."""
_NAMES = {
    "user": ("user", "user_id"),
    "item": ("item", "item_id"),
    "timestamp": ("timestamp", "time"),
    "rating": ("rating",),
}
_TIME_END = 2.0**63
_GROUP_ITEMS = 20
_NEXT_GROUP = 0.7
"""How often the next item is of the group that follows the last one's."""
_SECONDS = 10_000_000


@dataclass(frozen=True)
class Interactions:
    """In the order of time: users, items and timestamps ``[n]`` int64, and whether each item was liked, if known."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    liked: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.users)


def read_interactions(path: Path) -> Interactions:
    """Parquet, or tab-separated text with a header; columns user, item, timestamp and, if there is one, rating.

    ``user_id`` and ``item_id`` are good names too, and so is a type behind a colon (``user_id:token``).
    """
    if not path.is_file():
        raise DataError(f"interactions {path} is no file; give a parquet or TSV file")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            # Only one thread knows the numbers of lines.
            table = pacsv.read_csv(
                path,
                pacsv.ReadOptions(use_threads=False),
                pacsv.ParseOptions(delimiter="\t"),
            )
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"interactions {path} cannot be read: {error}") from None
    table = table.rename_columns([name.split(":")[0] for name in table.column_names])
    if table.num_rows == 0:
        raise DataError(f"interactions {path} has no rows")
    users, items = (_whole(table, name, path) for name in ("user", "item"))
    timestamps = _timestamps(table, path)
    rated = any(name in table.column_names for name in _NAMES["rating"])
    liked = _numbers(table, "rating", path) >= LIKED_FROM if rated else None
    return _in_order(users, items, timestamps, liked)


def generate_interactions(settings: SequencesConfig) -> Interactions:
    """Seeded interactions: every user with at least two, and no item twice."""
    stream = np.random.default_rng([settings.seed, settings.users, settings.items])
    groups = max(settings.items // _GROUP_ITEMS, 2)
    group_of = stream.integers(0, groups, settings.items)
    popular = 1.0 / stream.permutation(np.arange(1, settings.items + 1)) ** 0.5
    columns: list[tuple[NDArray[np.int64], ...]] = []
    for user in range(settings.users):
        count = int(np.clip(stream.poisson(settings.events), 2, max(settings.items // 2, 2)))
        items = _walk(stream, group_of, popular, groups, count)
        times = np.sort(stream.integers(0, _SECONDS, len(items)))
        columns.append((np.full(len(items), user + 1), items + 1, times))
    users, items, times = (np.concatenate(column) for column in zip(*columns, strict=True))
    return _in_order(users, items, times, (items % 3 != 0) & (stream.random(len(items)) < 0.8))


def _walk(
    stream: np.random.Generator,
    group_of: NDArray[np.int64],
    popular: NDArray[np.float64],
    groups: int,
    count: int,
) -> NDArray[np.int64]:
    """Items of one user, oldest first."""
    left = popular.copy()
    group = int(stream.integers(0, groups))
    walked = np.empty(count, np.int64)
    for step in range(count):
        weights = np.where(group_of == group, left, 0.0)
        if not weights.any():
            weights = left
        sums = np.cumsum(weights)
        item = int(np.searchsorted(sums, stream.random() * sums[-1], side="right"))
        walked[step] = item
        left[item] = 0.0
        follows = (group_of[item] + 1) % groups
        group = int(follows if stream.random() < _NEXT_GROUP else stream.integers(0, groups))
    return walked


def _in_order(
    users: NDArray[np.int64],
    items: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    liked: NDArray[np.bool_] | None,
) -> Interactions:
    # Of what happened at one instant, user and item decide, so that the order is that of no file.
    order = np.lexsort((items, users, timestamps))
    return Interactions(
        users[order], items[order], timestamps[order], None if liked is None else liked[order]
    )


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    for known in _NAMES[name]:
        if table.column_names.count(known) > 1:
            raise DataError(
                f"interactions {path} has {table.column_names.count(known)} columns {known!r}; drop all but one"
            )
        if known in table.column_names:
            column = table.column(known)
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy())[0])
                raise DataError(f"{path}, row {row} (from 0): {known!r} is missing; drop the row")
            return column
    raise DataError(
        f"interactions {path} has no column {' or '.join(map(repr, _NAMES[name]))}; it has "
        f"{', '.join(table.column_names)}"
    )


def _whole(table: pa.Table, name: str, path: Path) -> NDArray[np.int64]:
    column = _column(table, name, path)
    if not pa.types.is_integer(column.type):
        raise DataError(
            f"{path}: {name!r} has type {column.type}, as in {column[0].as_py()!r}; ids are 64-bit integers. Number "
            "them first (a 64-bit hash will do)"
        )
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: {name!r} has an id beyond 64-bit integers with a sign ({error}). Number them first (a 64-bit "
            "hash will do)"
        ) from None


def _timestamps(table: pa.Table, path: Path) -> NDArray[np.int64]:
    times = _numbers(table, "timestamp", path)
    wrong = np.flatnonzero(~(np.abs(times) < _TIME_END))
    if len(wrong):
        raise DataError(
            f"{path}, row {wrong[0]} (from 0): 'timestamp' = {times[wrong[0]]:g} is no time ({len(wrong)} such rows); "
            "drop the row"
        )
    return times.astype(np.int64)


def _numbers(table: pa.Table, name: str, path: Path) -> NDArray[np.float64]:
    column = _column(table, name, path)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(
            f"{path}: {name!r} has type {column.type}, as in {column[0].as_py()!r}; it must be a number"
        )
    return column.cast(pa.float64()).to_numpy()
