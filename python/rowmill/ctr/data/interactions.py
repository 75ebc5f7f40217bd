"""Interactions of users with items over time: a reader, and a generator.

The group of a generated user's next item depends on the group of the last item. So a model that sees the order of
items can predict better than one that sees only user and item.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rowmill._extras import extra
from rowmill.ctr.settings import SequencesConfig
from rowmill.errors import DataError

with extra("train"):
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

LIKED_FROM = 4.0
"""Lowest rating that counts as liked."""
_NAMES = {
    "user": ("user", "user_id"),
    "item": ("item", "item_id"),
    "timestamp": ("timestamp", "time"),
    "rating": ("rating",),
}
_TIME_END = 2.0**63
_GROUP_ITEMS = 20
_NEXT_GROUP = 0.7
"""Probability that the next item comes from the group after that of the last item."""
_SECONDS = 10_000_000


@dataclass(frozen=True)
class Interactions:
    """Interactions sorted by time: users, items and timestamps ``[n]`` int64, and whether the item was liked, if known."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    liked: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.users)


def read_interactions(path: Path) -> Interactions:
    """Read Parquet, or tab-separated text with a header; columns user, item, timestamp and optionally rating.

    The names ``user_id`` and ``item_id`` are accepted too, as is a type after a colon (``user_id:token``).
    """
    if not path.is_file():
        raise DataError(f"interactions {path} is not a file: pass a Parquet or TSV file")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            # Errors name line numbers only if one thread reads.
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
    """Seeded interactions: every user has at least two, and no item twice."""
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
    # Ties in time are sorted by user and item, so that the result does not depend on the order of the file.
    order = np.lexsort((items, users, timestamps))
    return Interactions(
        users[order], items[order], timestamps[order], None if liked is None else liked[order]
    )


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    for known in _NAMES[name]:
        if table.column_names.count(known) > 1:
            raise DataError(
                f"interactions {path} has {table.column_names.count(known)} columns {known!r}: keep only one"
            )
        if known in table.column_names:
            column = table.column(known)
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy())[0])
                raise DataError(f"{path}, row {row} (from 0): {known!r} is missing: drop the row")
            return column
    raise DataError(
        f"interactions {path} has no column {' or '.join(map(repr, _NAMES[name]))}; it has "
        f"{', '.join(table.column_names)}"
    )


def _whole(table: pa.Table, name: str, path: Path) -> NDArray[np.int64]:
    column = _column(table, name, path)
    if not pa.types.is_integer(column.type):
        raise DataError(
            f"{path}: {name!r} must hold 64-bit integers, got {column.type}, as in {column[0].as_py()!r}: number the "
            "ids first (a 64-bit hash will do)"
        )
    try:
        return column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: {name!r} has an id outside signed 64-bit integers ({error}): number the ids first (a 64-bit "
            "hash will do)"
        ) from None


def _timestamps(table: pa.Table, path: Path) -> NDArray[np.int64]:
    times = _numbers(table, "timestamp", path)
    wrong = np.flatnonzero(~(np.abs(times) < _TIME_END))
    if len(wrong):
        raise DataError(
            f"{path}, row {wrong[0]} (from 0): 'timestamp' = {times[wrong[0]]:g} is not a valid time ({len(wrong)} such "
            "rows): drop the row"
        )
    return times.astype(np.int64)


def _numbers(table: pa.Table, name: str, path: Path) -> NDArray[np.float64]:
    column = _column(table, name, path)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(
            f"{path}: {name!r} must hold numbers, got {column.type}, as in {column[0].as_py()!r}"
        )
    return column.cast(pa.float64()).to_numpy()
