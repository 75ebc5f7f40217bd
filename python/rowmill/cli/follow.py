"""Printed output of `rowmill follow`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from rowmill.distributed import FeedOfRanks
from rowmill.errors import InvalidInput, StoreSuperseded
from rowmill.store.feed import ChangeFeed, FeedCheckpoint, FeedDeletes, FeedRollback, FeedRows
from rowmill.train.found_run import is_of_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rowmill.store.feed import FeedEvent

_STARTS_MAX = 20
"""Attempts to copy a checkpoint while the writer keeps replacing it by newer ones."""


def print_feed(path: Path, *, since: int | str | None = None, seconds: int | None = None) -> None:
    """Follow a feed; print once a second the number of changes received and their lag behind publication.

    Args:
        path: Folder of a store, of a run, or of its rows.
        since: Start after this event, for a run of many ranks after this position of `FeedOfRanks`; None: start with the rows
            of the last checkpoint.
        seconds: Stop after this time without an event; None: never.
    """
    rows = deletes = 0
    lags_ms: list[float] = []
    at: int | str = since or 0
    printed = time.monotonic()

    def print_line() -> None:
        lag = f"lag {np.median(lags_ms):.1f} ms, at most {max(lags_ms):.1f}" if lags_ms else "lag -"
        print(f"event {at}: {rows:,} rows, {deletes:,} deletes; {lag}", flush=True)
        lags_ms.clear()

    for at, event in _follow(_folder_of_rows(path), since, seconds):
        if event.published_ns:
            lags_ms.append((time.time_ns() - event.published_ns) / 1e6)
        match event:
            case FeedRows(ids=ids):
                rows += len(ids)
            case FeedDeletes(ids=ids):
                deletes += len(ids)
            case FeedCheckpoint(epoch=epoch):
                print(f"event {at}: checkpoint {epoch}", flush=True)
            case FeedRollback(to=to, epoch=epoch):
                print(f"event {at}: rollback to event {to}, checkpoint {epoch}", flush=True)
        if time.monotonic() - printed >= 1:
            printed = time.monotonic()
            print_line()
    print_line()


def _folder_of_rows(path: Path) -> Path:
    """The folder of the rows of a run, or the folder itself."""
    inner = path / "store"
    return inner if inner.is_dir() else path


def _follow(
    folder: Path, since: int | str | None, seconds: int | None
) -> Iterator[tuple[int | str, FeedEvent]]:
    """Yield events with the value of `--since` that continues after them.

    If the writer replaces the checkpoint while it is copied, this starts again with the new one.
    """
    for start in range(_STARTS_MAX):
        try:
            # A run of many ranks has folders of parts before its first checkpoint.
            if folder.is_dir() and is_of_ranks([entry.name for entry in folder.iterdir()]):
                yield from _of_ranks(folder, since, seconds)
            else:
                yield from _of_one(folder, since, seconds)
            return
        except StoreSuperseded:
            if start + 1 == _STARTS_MAX:
                raise


def _of_ranks(
    folder: Path, since: int | str | None, seconds: int | None
) -> Iterator[tuple[int | str, FeedEvent]]:
    feed = FeedOfRanks(folder)
    for event in feed.follow(None if since is None else str(since), timeout_s=seconds):
        yield feed.position or 0, event


def _of_one(
    folder: Path, since: int | str | None, seconds: int | None
) -> Iterator[tuple[int | str, FeedEvent]]:
    if isinstance(since, str):
        raise InvalidInput(
            f"since is the position of a feed of many ranks, {since}, but {folder} is the store of one process: pass the "
            "number of an event"
        )
    latest = 0
    for event in ChangeFeed(folder).follow(since, timeout_s=seconds):
        latest = max(latest, event.sequence)
        yield latest, event
