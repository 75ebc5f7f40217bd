"""What is in a store, for a person: tables, sizes, hottest rows, health. Reads the last checkpoint, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table as TextTable

from rowmill.data import MISSING_ID
from rowmill.errors import StoreCorrupt, StoreIoError, StoreMissing
from rowmill.size import format_size
from rowmill.store import open as open_store

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from rowmill.store import Store


def print_store(path: Path, console: Console, *, hottest: int, verify: bool = False) -> bool:
    """Print everything; the store may be open for writing elsewhere.

    Args:
        path: Folder of the store.
        console: Where to print.
        hottest: Rows to list.
        verify: Read every row, so that damage shows.

    Returns:
        False if damage was met.
    """
    with _open(path) as store:
        stats = store.stats()
        console.print(_tables(store, stats))
        console.print(_sizes(stats))
        if hottest > 0:
            console.print(_hottest(store, hottest))
        damage = _damage(store) if verify else None
        console.print(
            _health(stats, damage, verify=verify), highlight=False, markup=False, soft_wrap=True
        )
    return not damage


def _open(path: Path) -> Store:
    try:
        return open_store(path, read_only=True)
    except StoreMissing:
        inner = path / "store"
        found = f"there is one at {inner}" if (inner / "MANIFEST").exists() else "check the path"
        raise StoreMissing(f"no store at {path}: {found}") from None


def _damage(store: Store) -> list[str]:
    """What reading every row of every table ran into, by table."""
    damage: list[str] = []
    for name in store.table_names():
        try:
            for _ in store.open_table(name).scan():
                pass
        except (StoreCorrupt, StoreIoError) as error:
            damage.append(f"table {name}: {error}")
    return damage


def _tables(store: Store, stats: dict[str, Any]) -> TextTable:
    shown = _text_table(
        "Tables", ["name", "group", "dim", "optimizer", "rows", "bytes", "lookups", "steps"]
    )
    for name in store.table_names():
        table, figures = store.open_table(name), stats["tables"][name]
        shown.add_row(
            escape(name),
            str(figures["group"]),
            str(table.dim),
            type(table.optimizer).__name__,
            f"{figures['rows']:,}",
            format_size(figures["rows"] * figures["row_bytes"]),
            f"{figures['accesses']:,}",
            f"{figures['steps']:,}",
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


def _health(stats: dict[str, Any], damage: list[str] | None, *, verify: bool) -> str:
    rows = sum(table["rows"] for table in stats["tables"].values())
    live, used = stats["device_live_bytes"], stats["device_used_bytes"]
    space = f"{used / live:.2f} device bytes per live byte" if live else "nothing on the device"
    figures = f"{rows:,} rows; {space}"
    if damage:
        return "\n".join([*damage, f"DAMAGED: {figures}"])
    seen = "every row was read" if verify else "the index was read, --verify reads the rows too"
    return f"healthy: {figures}; {seen}"


def _text_table(title: str, columns: list[str]) -> TextTable:
    shown = TextTable(
        title=title, title_justify="left", box=None, pad_edge=False, title_style="bold"
    )
    for number, column in enumerate(columns):
        shown.add_column(column, justify="left" if number == 0 else "right", style=None)
    return shown
