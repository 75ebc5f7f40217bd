"""The commands `rowmill storage ...`: storage nodes, which serve tables and blocks over NVMe/TCP."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.cli.importing import importing
from rowmill.cli.subcommand import add_command
from rowmill.errors import CheckpointMissing, InvalidInput, StorageError
from rowmill.size import format_size
from rowmill.store.access import Access

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator

_STORE = "folder of a run (--out of rowmill train), or the folder of its rows"
_URL = "namespace of rows: nvme+tcp://HOST:PORT/NQN, as printed by rowmill storage serve"
# Seconds between two lines of a follower.
_SHOWN_S = 1.0
# Bytes of the index per row (docs/guide/memory-and-disk.md).
_DENSE_BYTES = 5
_HASH_BYTES = (16, 24)
# The least memory that a node takes for rows that hosts fill.
_MEMORY_MIN = 64 << 20


def add_storage(commands: Any) -> None:
    """Add `rowmill storage` to the commands."""
    storage = add_command(
        commands, "storage", "serve tables or blocks to other machines over NVMe/TCP"
    ).add_subparsers(required=True, metavar="COMMAND")

    serve = add_command(storage, "serve", "run a storage node until SIGTERM or Ctrl-C")
    serve.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file with the settings"
    )
    serve.set_defaults(command=_serve, interrupted="")

    fill = add_command(
        storage, "fill", "copy the weights of a store to a node, replacing the tables of the node"
    )
    fill.add_argument(
        "store", metavar="STORE|URL", help=f"{_STORE}, or a URL that was given to rowmill push"
    )
    _add_target(fill, dtype=True)
    fill.set_defaults(command=_fill, interrupted="; the node still has its old tables")

    follow = add_command(
        storage,
        "follow",
        "fill a node if needed, then send it every change of a store while it is trained",
    )
    follow.add_argument("store", type=Path, metavar="STORE", help=_STORE)
    _add_target(follow, dtype=True)
    follow.add_argument(
        "--seconds", type=float, metavar="N", help="stop after N seconds (default: never)"
    )
    follow.set_defaults(command=_follow, interrupted="; run the same command to continue")

    status = add_command(
        storage, "status", "print the tables of a node and the number of its last change"
    )
    _add_target(status, dtype=False)
    status.set_defaults(command=_status, interrupted="")

    plan = add_command(storage, "plan", "print the disk and memory that a node needs for a store")
    plan.add_argument("store", type=Path, metavar="STORE", help=_STORE)
    plan.add_argument(
        "--dtype",
        choices=("fp32", "bf16"),
        help="dtype of rows on the node (default: that of each table)",
    )
    plan.set_defaults(command=_plan, interrupted="")


def _add_target(parser: argparse.ArgumentParser, *, dtype: bool) -> None:
    parser.add_argument("url", metavar="NODE", help=_URL)
    if dtype:
        parser.add_argument(
            "--dtype",
            choices=("fp32", "bf16"),
            help="dtype of rows on the node (default: that of each table)",
        )
    parser.add_argument(
        "--access",
        type=Path,
        metavar="FILE",
        help="TOML file with name and keys of this host (default: the name in /etc/nvme/hostnqn, without keys)",
    )


def _serve(parsed: argparse.Namespace) -> int:
    from rowmill._core import StorageNode

    node = StorageNode(parsed.config)
    print(json.dumps({"ready": node.urls, "metrics": node.metrics}), flush=True)
    node.run()
    return 0


def _fill(parsed: argparse.Namespace) -> int:
    from rowmill._core import storage_fill

    access = Access.read(parsed.access)
    begun = time.monotonic()
    with _parts(parsed.store) as (parts, replicated):
        try:
            tables, rows, size, sequence = storage_fill(
                parts, replicated, parsed.url, dtype_name=parsed.dtype, access=access
            )
        except StorageError as error:
            raise StorageError(
                f"{error}; the node serves its old tables until a fill is complete: run the same command again"
            ) from None
    print(
        f"filled {tables} tables with {rows:,} rows, {format_size(size)}, in {time.monotonic() - begun:.1f} s; "
        f"a follower continues after frame {sequence} of the feed"
    )
    return 0


@contextmanager
def _parts(store: str) -> Generator[tuple[list[tuple[Path, int | None]], list[str]]]:
    """The stores to copy, with the checkpoint of each: one, or one of each rank. And the tables that every rank has."""
    if "://" not in store:
        yield _parts_in(_folder(Path(store)))
        return
    with importing():
        from rowmill.cli.remote import restore_from

    with tempfile.TemporaryDirectory(prefix="rowmill-fill-") as folder:
        restored = Path(folder) / "store"
        restore_from(store, restored)
        yield _parts_in(restored)


def _parts_in(folder: Path) -> tuple[list[tuple[Path, int | None]], list[str]]:
    if not (folder / "CHECKPOINT").exists():
        return [(folder, None)], []
    from rowmill.distributed import Manifest

    manifest = Manifest.load(folder)
    assert manifest is not None, "the file is there"
    parts = folder / f"parts-{manifest.generation}"
    replicated = [name for name, of in manifest.placements.items() if of == "replicated"]
    return [(parts / str(rank), epoch) for rank, epoch in enumerate(manifest.epochs)], replicated


def _folder(run: Path) -> Path:
    for folder in (run / "store", run):
        if (folder / "MANIFEST").exists() or (folder / "CHECKPOINT").exists():
            return folder
    raise CheckpointMissing(
        f"{run} has no checkpoint: give the folder of a run (--out of `rowmill train`) or of its rows (--store)"
    )


def _follow(parsed: argparse.Namespace) -> int:
    from rowmill._core import StorageFollower

    if parsed.seconds is not None and not parsed.seconds > 0:
        raise InvalidInput(f"--seconds must be > 0, got {parsed.seconds}")
    folder = _folder(parsed.store)
    if (folder / "CHECKPOINT").exists():
        raise InvalidInput(
            f"{folder} holds a run of many ranks, and a node follows the feed of one store: fill the node after each "
            "checkpoint with rowmill storage fill"
        )
    access = Access.read(parsed.access)
    follower = StorageFollower(folder, parsed.url, dtype_name=parsed.dtype, access=access)
    end = None if parsed.seconds is None else time.monotonic() + parsed.seconds
    shown, was_refused = None, False
    while end is None or time.monotonic() < end:
        fills, frames, rows, sequence, published_ns, is_refused = follower.run(_SHOWN_S)
        if is_refused and not was_refused:
            print(f"rowmill: {_refusal(parsed.url)}; trying again", file=sys.stderr, flush=True)
        was_refused = is_refused
        if (fills, sequence) != shown:
            lag = f"{(time.time_ns() - published_ns) / 1e9:.3f} s after it was published"
            print(
                f"{fills} fills, {frames:,} frames, {rows:,} rows; the node has frame {sequence}"
                + (f", seen {lag}" if published_ns else ""),
                flush=True,
            )
            shown = (fills, sequence)
    if was_refused:
        raise StorageError(f"{_refusal(parsed.url)}, then run the same command to continue")
    return 0


def _refusal(url: str) -> str:
    return (
        f"{url} refuses the next change: its disk is full, or its memory too small. The log of the node names the disk or "
        "the memory that it needs: free space, or raise memory in its settings"
    )


def _status(parsed: argparse.Namespace) -> int:
    from rowmill._core import storage_status

    tables, sequence = storage_status(parsed.url, access=Access.read(parsed.access))
    print(f"{'table':<30}  {'dim':>6}  {'dtype':<5}  {'ids':>16}")
    for name, dim, dtype, rows in tables:
        ids = "any" if rows is None else f"[0, {rows:,})"
        print(f"{name:<30}  {dim:>6}  {dtype:<5}  {ids:>16}")
    print(f"rows are as of frame {sequence} of the feed")
    return 0


def _plan(parsed: argparse.Namespace) -> int:
    from rowmill import _core
    from rowmill.optim.specs import SGD, optimizer_to_dict

    optimizer = optimizer_to_dict(SGD(lr=0.0))
    disk = low = high = 0
    with _parts(str(parsed.store)) as (parts, replicated):
        found = [_core.Changes.open(str(path), 0, at).tables() for path, at in parts]
    print(f"{'table':<30}  {'rows':>16}  {'bytes per row':>13}  {'disk':>10}")
    for table in found[0]:
        counted = found[:1] if table["name"] in replicated else found
        rows = sum(
            entry["rows"] for part in counted for entry in part if entry["name"] == table["name"]
        )
        stride = _core.row_stride(table["dim"], parsed.dtype or table["dtype"], optimizer)
        print(f"{table['name']:<30}  {rows:>16,}  {stride:>13}  {format_size(rows * stride):>10}")
        disk += rows * stride
        if table["dense_rows"] is None:
            low, high = low + rows * _HASH_BYTES[0], high + rows * _HASH_BYTES[1]
        else:
            low, high = (size + table["dense_rows"] * _DENSE_BYTES for size in (low, high))
    # A fill is written beside the tables that it replaces, in a quarter of the memory.
    print(f"disk: {format_size(disk)} for rows, twice that during a fill")
    print(f"index in memory: {format_size(low)} to {format_size(high)}")
    print(
        f"memory: {format_size(max(4 * high, _MEMORY_MIN))} at least, because a quarter of it is for the index of the "
        f"next fill; {format_size(max((high + disk) * 4 // 3, _MEMORY_MIN))} to hold all rows"
    )
    return 0
