"""Printed output of `rowmill inspect`, `fsck` and `changes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill import _core
from rowmill._extras import extra
from rowmill.ctr.data import MISSING_ID
from rowmill.errors import StoreMissing
from rowmill.size import format_size
from rowmill.store.changes import Changes, count
from rowmill.store.changes_file import write_parquet
from rowmill.store.store import open as open_store

with extra("train"):
    from rich.markup import escape
    from rich.table import Table as TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from rowmill.store.store import Store

_ROW_PLACES_WARNING = 0.8
"""Share of used row places of a group from which `rowmill inspect` prints a warning."""


def print_store(path: Path, console: Console, *, hottest: int) -> None:
    """Print tables, sizes and most looked-up rows of the last checkpoint; another process may have the store open.

    Args:
        path: Folder of the store.
        console: Where to print.
        hottest: Number of most looked-up rows to list.
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
    """Check every block of a store; print the numbers of verified objects, and each problem.

    Args:
        path: Folder of the store.
        repair: If there are problems, write a new checkpoint with the intact rows. No process may have the store open.
        dropped: File for the list of dropped rows; None prints the list.

    Returns:
        Whether the store has no problem.
    """
    if dropped is not None:
        # Before the repair: afterwards the dropped rows are known no more.
        dropped.open("a").close()
    report = _core.fsck(str(path), repair)
    for problem in report["problems"]:
        print(problem)
    lost = [*_lost_rows(report["dropped"]), *report["unnamed"]]
    if dropped is None:
        verb = "dropped" if repair else "damaged"
        for line in lost:
            print(f"{verb}: {line}")
    else:
        try:
            dropped.write_text("".join(f"{line}\n" for line in lost))
        except OSError:
            print(*lost, sep="\n")
            raise
        print(f"wrote {len(lost)} lines with the ids of dropped rows to {dropped}")
    read = (
        f"checkpoint {report['epoch']}: read {report['files']} files and {report['segments']:,} segments with "
        f"{report['blocks']:,} blocks; {report['rows']:,} rows are intact"
    )
    if report["versions"]:
        read += f", {report['versions']} versions were checked"
    if not report["problems"]:
        print(f"clean: {read}")
    elif report["repaired"] is not None:
        print(f"repaired: {read} and saved as checkpoint {report['repaired']}")
    else:
        print(f"DAMAGED: {read}; {len(report['problems'])} problems")
    return not report["problems"]


def print_changes(path: Path, *, since: int, out: Path | None = None) -> None:
    """Print how many rows of each table were written and deleted since a checkpoint, and optionally export them.

    Args:
        path: Folder of the store.
        since: Number of the earlier checkpoint; 0: all rows.
        out: Parquet file for the rows; None exports nothing.
    """
    changes = Changes(path, since=since)
    counts = count(changes) if out is None else write_parquet(changes, out)
    for name, (written, deleted) in counts.items():
        print(f"table {name}: {written:,} rows written, {deleted:,} deleted")
    where = "" if out is None else f"; wrote the rows to {out}"
    print(f"changes from checkpoint {changes.since} to {changes.until}{where}")


def _lost_rows(dropped: dict[str, bytearray]) -> Iterator[str]:
    """One line per range of consecutive ids."""
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
        "Rows since the tables were created",
        ["name", "created", "deleted", "evicted", "eviction", "admission"],
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
    shown = _text_table("Space", ["use", "bytes"])
    for label, name in [
        ("disk: live rows", "device_live_bytes"),
        ("disk: segments in use", "device_used_bytes"),
        ("disk: needed only by the last checkpoint", "device_pinned_bytes"),
        ("disk: free for reuse", "device_free_bytes"),
        ("memory: index", "index_bytes"),
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
        f"{figures['row_places']:,}); new rows are refused when the rest is needed for checkpoints: delete or evict "
        f"rows, or use another dim or optimizer for some tables, which puts them into another group"
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
    space = f"{used / live:.2f} bytes on disk per live byte" if live else "nothing on disk"
    return f"healthy: {rows:,} rows; {space}; only the index was checked, rowmill fsck also checks the rows"


def _text_table(title: str, columns: list[str]) -> TextTable:
    shown = TextTable(
        title=title, title_justify="left", box=None, pad_edge=False, title_style="bold"
    )
    for number, column in enumerate(columns):
        shown.add_column(column, justify="left" if number == 0 else "right", style=None)
    return shown
