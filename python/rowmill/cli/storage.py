"""The commands `rowmill storage ...`: storage nodes, which serve tables and blocks over NVMe/TCP."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.errors import CheckpointMissing, InvalidInput
from rowmill.size import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Generator

_STORE = "folder of a run (--out of rowmill train), or of its rows"
_URL = "namespace of rows: nvme+tcp://HOST:PORT/NQN, as printed by rowmill storage serve"
# Seconds between two lines of a follower.
_SHOWN_S = 1.0
# Bytes of the index per row (docs/guide/memory-and-disk.md).
_DENSE_BYTES = 5
_HASH_BYTES = (16, 24)


def add_storage(commands: Any) -> None:
    """Add `rowmill storage` to the commands."""
    storage = commands.add_parser(
        "storage", help="serve tables or blocks to other machines over NVMe/TCP"
    ).add_subparsers(required=True, metavar="COMMAND")

    serve = storage.add_parser("serve", help="run a storage node until SIGTERM")
    serve.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file with the settings"
    )
    serve.set_defaults(command=_serve, interrupted="")

    fill = storage.add_parser(
        "fill", help="copy the weights of a store to a node, in place of the tables that it has"
    )
    fill.add_argument(
        "store", metavar="STORE|URL", help=f"{_STORE}, or a URL that was given to rowmill push"
    )
    _add_target(fill, dtype=True)
    fill.set_defaults(command=_fill, interrupted="; the node still has the tables from before")

    follow = storage.add_parser(
        "follow", help="fill a node if needed, then send it every change of a store in training"
    )
    follow.add_argument("store", type=Path, metavar="STORE", help=_STORE)
    _add_target(follow, dtype=True)
    follow.add_argument(
        "--seconds", type=float, metavar="N", help="stop after N seconds (default: never)"
    )
    follow.set_defaults(command=_follow, interrupted="; run the same command to continue")

    status = storage.add_parser("status", help="print the tables of a node and its last change")
    _add_target(status, dtype=False)
    status.set_defaults(command=_status, interrupted="")

    plan = storage.add_parser(
        "plan", help="print the disk and memory that a node needs for a store"
    )
    plan.add_argument("store", type=Path, metavar="STORE", help=_STORE)
    plan.add_argument("--dtype", choices=("fp32", "bf16"), help="dtype of rows on the node")
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
        "--host-nqn", metavar="NQN", help="name of this host (default: /etc/nvme/hostnqn)"
    )
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="file with this host's key")


def _target(parsed: argparse.Namespace) -> dict[str, Any]:
    return {"host_nqn": parsed.host_nqn, "key_file": parsed.key_file}


def _serve(parsed: argparse.Namespace) -> int:
    from rowmill._core import StorageNode

    node = StorageNode(parsed.config)
    print(json.dumps({"ready": node.urls, "metrics": node.metrics}), flush=True)
    node.run()
    return 0


def _fill(parsed: argparse.Namespace) -> int:
    from rowmill._core import storage_fill

    begun = time.monotonic()
    with _parts(parsed.store) as parts:
        tables, rows, size, sequence = storage_fill(
            parts, parsed.url, dtype_name=parsed.dtype, **_target(parsed)
        )
    print(
        f"filled {tables} tables with {rows:,} rows, {format_size(size)}, in {time.monotonic() - begun:.1f} s; "
        f"the feed goes on after {sequence}"
    )
    return 0


@contextmanager
def _parts(store: str) -> Generator[list[tuple[Path, int | None]]]:
    """The stores to copy, with the checkpoint of each: one, or one of each rank."""
    if "://" in store:
        from rowmill.store.remote import restore

        with tempfile.TemporaryDirectory(prefix="rowmill-fill-") as folder:
            restore(store, Path(folder) / "store")
            yield [(Path(folder) / "store", None)]
        return
    folder = _folder(Path(store))
    if not (folder / "CHECKPOINT").exists():
        yield [(folder, None)]
        return
    from rowmill.distributed import Manifest

    manifest = Manifest.load(folder)
    assert manifest is not None, "the file is there"
    parts = folder / f"parts-{manifest.generation}"
    yield [(parts / str(rank), epoch) for rank, epoch in enumerate(manifest.epochs)]


def _folder(run: Path) -> Path:
    for folder in (run / "store", run):
        if (folder / "MANIFEST").exists() or (folder / "CHECKPOINT").exists():
            return folder
    raise CheckpointMissing(
        f"{run} has no checkpoint: give the folder of a run (--out of `rowmill train`) or of its rows (--store)"
    )


def _follow(parsed: argparse.Namespace) -> int:
    from rowmill._core import StorageFollower

    folder = _folder(parsed.store)
    if (folder / "CHECKPOINT").exists():
        raise InvalidInput(
            f"{folder} is of a run of many ranks, whose feeds have no common order: fill the node after each checkpoint "
            "with rowmill storage fill"
        )
    follower = StorageFollower(folder, parsed.url, dtype_name=parsed.dtype, **_target(parsed))
    end = None if parsed.seconds is None else time.monotonic() + parsed.seconds
    shown = None
    while end is None or time.monotonic() < end:
        fills, frames, rows, sequence, published_ns = follower.run(_SHOWN_S)
        if (fills, sequence) != shown:
            lag = f"{(time.time_ns() - published_ns) / 1e9:.3f} s after it was published"
            print(
                f"{fills} fills, {frames:,} frames, {rows:,} rows; the node has frame {sequence}"
                + (f", seen {lag}" if published_ns else ""),
                flush=True,
            )
            shown = (fills, sequence)
    return 0


def _status(parsed: argparse.Namespace) -> int:
    from rowmill._core import storage_status

    tables, sequence = storage_status(parsed.url, **_target(parsed))
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
    print(f"{'table':<30}  {'rows':>16}  {'bytes per row':>13}  {'disk':>10}")
    with _parts(str(parsed.store)) as parts:
        found = [_core.Changes.open(str(path), 0, at).tables() for path, at in parts]
    for table in found[0]:
        rows = sum(
            entry["rows"] for part in found for entry in part if entry["name"] == table["name"]
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
        f"memory: {format_size(4 * high)} at least, because a quarter of it is for the index of the next fill; "
        f"{format_size((high + disk) * 4 // 3)} to hold all rows"
    )
    return 0
