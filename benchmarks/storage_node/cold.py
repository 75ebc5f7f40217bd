"""Rows that a node reads from its disk, beside a probe of that disk."""

import json
import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.memory_group import MOUNT, memory_group
from benchmarks.serving.part import rotated
from benchmarks.storage_node.node import WIRE_MIB, Node, serving
from benchmarks.storage_node.part import Part
from benchmarks.storage_node.reader_process import ReaderProcess, reading
from benchmarks.storage_node.settings import MIB
from benchmarks.storage_node.stores import row_bytes
from benchmarks.storage_node.summary import bound_bytes

_SENDERS = 8
_COLD_ROWS = "rowmill_cold_reads_total"


def cold(part: Part) -> None:
    """Rounds of a node with memory for a quarter of the rows, and of the probe on the file of these rows."""
    settings = part.settings
    program = common.bench_program()
    store = part.stores.dense(settings.rows)
    memory = row_bytes(settings.rows) // 4 // MIB
    subsystem = f'store = "{store}"\nmemory = "{memory}MiB"'
    with (
        _limited(int(bound_bytes((memory + WIRE_MIB) * MIB))) as inside,
        serving(part.folder / "cold", subsystem, inside=inside) as node,
        reading(node.url, rows=settings.rows, bags=1, seed=part.seed) as reader,
    ):
        reader.call("pool", seconds=settings.warm_s, threads=_SENDERS, repeats=False)
        for number in range(settings.rounds):
            ways = {
                "node": lambda: _ask(node, reader, settings.seconds),
                "probe": lambda number=number: _probe(
                    program, store, settings.seconds, part.seed + number
                ),
            }
            for way in rotated(list(ways), number):
                part.cells.measure(
                    ways[way], part="cold", way=way, round=number, limited=bool(inside)
                )


@contextmanager
def _limited(limit: int) -> Generator[Sequence[str]]:
    """What a command begins with, to run in a group with a memory limit; nothing where no group can be made."""
    if os.geteuid() != 0 or not MOUNT.is_dir():
        yield ()
        return
    with memory_group("storage-node", limit) as group:
        yield group.command([])


def _ask(node: Node, reader: ReaderProcess, seconds: float) -> dict[str, Any]:
    rows, size, cpu = node.metric(_COLD_ROWS), node.read_bytes(), node.cpu_s()
    found = reader.call("pool", seconds=seconds, threads=_SENDERS, repeats=False)
    return {
        **found,
        "cold_rows": node.metric(_COLD_ROWS) - rows,
        "read_bytes": node.read_bytes() - size,
        "node_cpu_s": node.cpu_s() - cpu,
    }


def _probe(program: Path, store: Path, seconds: float, seed: int) -> dict[str, Any]:
    command = [str(program), "device", "--folder", str(store), "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--rounds", "1", "--seed", str(seed)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    line = json.loads(done.stdout)
    return {name: line[name] for name in ("rows", "wall_s", "cpu_s")}
