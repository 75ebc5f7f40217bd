"""What is in a store, for a person: tables, sizes, hottest rows, health; and whether every block of it is right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape
from rich.table import Table as TextTable

from rowmill import _core
from rowmill.ctr.data import MISSING_ID
from rowmill.errors import StoreMissing, StoreSuperseded
from rowmill.size import format_size
from rowmill.store.changes import Changes, count
from rowmill.store.changes_file import write_parquet
from rowmill.store.feed import ChangeFeed, FeedCheckpoint, FeedDeletes, FeedRollback, FeedRows
from rowmill.store.store import open as open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from rowmill.store.feed import FeedEvent
    from rowmill.store.store import Store

_ROW_PLACES_WARNING = 0.8
"""Share of a group's row places from which on a warning is printed."""

_STARTS_MAX = 20
"""Copies of a checkpoint that are begun before a writer that is always faster is given up."""


def print_store(path: Path, console: Console, *, hottest: int) -> None:
    """Print everything, of the last checkpoint; the store may be open for writing elsewhere.

    Args:
        path: Folder of the store.
        console: Where to print.
        hottest: Rows to list.
    """
    with _open(path) as store:
        stats = store.stats()
        console.print(_tables(store, stats))
        console.print(_counts(store, stats))
        console.print(_sizes(stats))
        console.print(_row_places(stats))
        if hottest > 0:
            console.print(_hottest(store, hottest))
        for line in [*_warnings(stats), _health(stats)]:
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_fsck(path: Path, *, repair: bool, dropped: Path | None = None) -> bool:
    """Read every block of a store and print what was verified and each problem; with `repair`, keep what is proven.

    Args:
        path: Folder of the store.
        repair: Write a new checkpoint of what is proven if anything is wrong; nobody may have the store open.
        dropped: File for the list of dropped rows; without it they are printed.

    Returns:
        Whether nothing was wrong.
    """
    report = _core.fsck(str(path), repair)
    for problem in report["problems"]:
        print(problem)
    lost = [*_lost_rows(report["dropped"]), *report["unnamed"]]
    if dropped is None:
        verb = "dropped" if repair else "not proven"
        for line in lost:
            print(f"{verb}: {line}")
    else:
        dropped.write_text("".join(f"{line}\n" for line in lost))
        print(f"{len(lost)} lines of dropped rows are in {dropped}")
    read = (
        f"checkpoint {report['epoch']}: {report['files']} files, {report['segments']:,} segments with "
        f"{report['blocks']:,} blocks read, {report['rows']:,} rows proven"
    )
    if not report["problems"]:
        print(f"clean: {read}")
    elif report["repaired"] is not None:
        print(f"repaired: {read}, and kept in checkpoint {report['repaired']}")
    else:
        print(f"DAMAGED: {read}; {len(report['problems'])} problems")
    return not report["problems"]


def print_changes(path: Path, *, since: int, out: Path | None = None) -> None:
    """Print how many rows of each table were written and deleted since a checkpoint, and export them if asked to.

    Args:
        path: Folder of the store.
        since: Number of the earlier checkpoint; 0: all rows.
        out: Parquet file for the rows.
    """
    changes = Changes(path, since=since)
    counts = count(changes) if out is None else write_parquet(changes, out)
    for name, (written, deleted) in counts.items():
        print(f"table {name}: {written:,} rows written, {deleted:,} deleted")
    where = "" if out is None else f"; they are in {out}"
    print(f"changes from checkpoint {changes.since} to {changes.until}{where}")


def print_feed(path: Path, *, since: int | None = None, seconds: int | None = None) -> None:
    """Follow a feed and print, once a second, what came and how long after it was published.

    Args:
        path: Folder of the store.
        since: Last event already seen; None: begin with the rows of the last checkpoint.
        seconds: End after so long without an event; None: never.
    """
    rows = deletes = 0
    lags_ms: list[float] = []
    sequence = since or 0
    printed = time.monotonic()

    def print_line() -> None:
        lag = f"lag {np.median(lags_ms):.1f} ms, at most {max(lags_ms):.1f}" if lags_ms else "lag -"
        print(f"event {sequence}: {rows:,} rows, {deletes:,} deletes; {lag}", flush=True)
        lags_ms.clear()

    for event in _follow(path, since, seconds):
        sequence = max(sequence, event.sequence)
        if event.published_ns:
            lags_ms.append((time.time_ns() - event.published_ns) / 1e6)
        match event:
            case FeedRows(ids=ids):
                rows += len(ids)
            case FeedDeletes(ids=ids):
                deletes += len(ids)
            case FeedCheckpoint(epoch=epoch):
                print(f"event {sequence}: checkpoint {epoch}", flush=True)
            case FeedRollback(to=to, epoch=epoch):
                print(f"event {sequence}: back to event {to}, checkpoint {epoch}", flush=True)
        if time.monotonic() - printed >= 1:
            printed = time.monotonic()
            print_line()
    print_line()


def _follow(path: Path, since: int | None, seconds: int | None) -> Iterator[FeedEvent]:
    """Follow a feed; the copy of a checkpoint that is replaced while it is read begins again with the next one."""
    for start in range(_STARTS_MAX):
        try:
            yield from ChangeFeed(path).follow(since, timeout_s=seconds)
            return
        except StoreSuperseded:
            if start + 1 == _STARTS_MAX:
                raise


def _lost_rows(dropped: dict[str, bytearray]) -> Iterator[str]:
    """Ranges of ids, a line each."""
    for table, ids in dropped.items():
        sorted_ids = np.sort(np.frombuffer(ids, dtype=np.int64))
        for run in np.split(sorted_ids, np.flatnonzero(np.diff(sorted_ids) != 1) + 1):
            last = f"..{run[-1]}" if len(run) > 1 else ""
            yield f"table {table} id {run[0]}{last}"


def _open(path: Path) -> Store:
    try:
        return open_store(path, read_only=True)
    except StoreMissing:
        inner = path / "store"
        found = f"there is one at {inner}" if (inner / "MANIFEST").exists() else "check the path"
        raise StoreMissing(f"no store at {path}: {found}") from None


def _tables(store: Store, stats: dict[str, Any]) -> TextTable:
    shown = _text_table(
        "Tables",
        ["name", "group", "dim", "dtype", "optimizer", "rows", "bytes", "lookups", "steps"],
    )
    for name in store.table_names():
        table, figures = store.open_table(name), stats["tables"][name]
        shown.add_row(
            escape(name),
            str(figures["group"]),
            str(table.dim),
            table.dtype,
            type(table.optimizer).__name__,
            f"{figures['rows']:,}",
            format_size(figures["rows"] * figures["row_bytes"]),
            f"{figures['accesses']:,}",
            f"{figures['steps']:,}",
        )
    return shown


def _counts(store: Store, stats: dict[str, Any]) -> TextTable:
    shown = _text_table(
        "Rows since the tables were made",
        ["name", "born", "deleted", "evicted", "eviction", "admission"],
    )
    for name in store.table_names():
        table, figures = store.open_table(name), stats["tables"][name]
        rules = (table.eviction, table.admission)
        shown.add_row(
            escape(name),
            f"{figures['births']:,}",
            f"{figures['deletes']:,}",
            f"{figures['evicted']:,}",
            *("-" if rule is None else type(rule).__name__ for rule in rules),
        )
    return shown


def _sizes(stats: dict[str, Any]) -> TextTable:
    shown = _text_table("Device", ["what", "bytes"])
    for label, name in [
        ("live rows", "device_live_bytes"),
        ("segments in use", "device_used_bytes"),
        ("kept for the last checkpoint only", "device_pinned_bytes"),
        ("free for reuse", "device_free_bytes"),
        ("index in memory", "index_bytes"),
    ]:
        shown.add_row(label, format_size(stats[name]))
    return shown


def _tables_of(stats: dict[str, Any], group: int) -> str:
    return ", ".join(name for name, table in stats["tables"].items() if table["group"] == group)


def _row_places(stats: dict[str, Any]) -> TextTable:
    shown = _text_table("Row places", ["tables", "group", "used", "limit", "share"])
    for group, figures in stats["groups"].items():
        shown.add_row(
            escape(_tables_of(stats, group)),
            str(group),
            f"{figures['row_places_used']:,}",
            f"{figures['row_places']:,}",
            f"{figures['row_places_share']:.1%}",
        )
    return shown


def _warnings(stats: dict[str, Any]) -> list[str]:
    return [
        f"warning: group {group} (tables {_tables_of(stats, group)}) has used "
        f"{figures['row_places_share']:.0%} of its row places ({figures['row_places_used']:,} of "
        f"{figures['row_places']:,}): new rows will be refused; delete or evict rows, or give some tables another dim "
        f"or optimizer, which puts them into another group"
        for group, figures in stats["groups"].items()
        if figures["row_places_share"] >= _ROW_PLACES_WARNING
    ]


def _hottest(store: Store, count: int) -> TextTable:
    found = [
        (lookups, name, id_)
        for name in store.table_names()
        for id_, lookups in store.open_table(name).hottest(count)
    ]
    shown = _text_table("Hottest rows", ["table", "id", "lookups"])
    for lookups, name, id_ in sorted(found, reverse=True)[:count]:
        shown.add_row(escape(name), "missing" if id_ == MISSING_ID else str(id_), f"{lookups:,}")
    return shown


def _health(stats: dict[str, Any]) -> str:
    rows = sum(table["rows"] for table in stats["tables"].values())
    live, used = stats["device_live_bytes"], stats["device_used_bytes"]
    space = f"{used / live:.2f} device bytes per live byte" if live else "nothing on the device"
    return f"healthy: {rows:,} rows; {space}; the index was read, rowmill fsck reads the rows too"


def _text_table(title: str, columns: list[str]) -> TextTable:
    shown = TextTable(
        title=title, title_justify="left", box=None, pad_edge=False, title_style="bold"
    )
    for number, column in enumerate(columns):
        shown.add_column(column, justify="left" if number == 0 else "right", style=None)
    return shown
