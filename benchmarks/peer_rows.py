"""Access from a Python loop to rows in another engine.

The engine runs in its own process inside a memory group (rowmill-bench, `peer ... rows`). Rows are passed in a file that
both processes map into memory.
"""

import argparse
import mmap
import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from benchmarks.memory_group import memory_group

PROCESS_BYTES = 512 << 20
"""Bytes added to the memory limit of a process, on top of the engine's cache: for the engine's code, for rows in transfer,
and for memory that its allocator keeps unused. With 256 MiB, a run was ended for lack of memory."""
KINDS = ("rocksdb", "lmdb", "faster")
"""Engines that the loops support."""
THREADS = {"rocksdb": 16, "lmdb": 16, "faster": 2}
"""Threads for reading and prefetching: enough to keep the device busy where reads block, one per core where reads are
asynchronous."""
KEYS_MAX = 16_384
"""Default of the most keys per request."""
_BLOCK_BYTES = 4096
"""Read unit of both engines."""
_CPU_FIELDS = slice(11, 13)
"""User and system time in /proc/PID/stat, counted from the field after the program's name."""


class PeerRows:
    """Rows of an engine, by key."""

    def __init__(
        self, process: "subprocess.Popen[str]", exchange: mmap.mmap, floats: int, keys_max: int
    ) -> None:
        self._process = process
        self.keys_max = keys_max
        self._keys = np.frombuffer(exchange, np.uint64, keys_max)
        self._rows = np.frombuffer(exchange, np.float32, keys_max * floats, 8 * keys_max)
        self._rows = self._rows.reshape(keys_max, floats)
        self._answered("ready")

    def get(self, keys: NDArray[Any]) -> NDArray[np.float32]:
        """The rows of distinct, ascending keys; a view that is valid until the next request."""
        self._keys[: len(keys)] = keys
        self._ask("get", len(keys))
        return self._rows[: len(keys)]

    def announce(self, keys: NDArray[Any], steps: int) -> None:
        """Ask the engine to prefetch rows for a `get` in `steps` steps; 1 is the next step."""
        self._keys[: len(keys)] = keys
        self._ask("announce", len(keys), steps)

    def put(self, keys: NDArray[Any], rows: NDArray[np.float32], how: str = "put") -> None:
        """Replace rows. `how="append"`: insert rows with keys larger than all before."""
        self._keys[: len(keys)] = keys
        self._rows[: len(keys)] = rows
        self._ask(how, len(keys))

    def settle(self) -> None:
        """Wait until the engine's background work and prefetching have ended."""
        self._ask("settle", 0)

    def cpu_s(self) -> float:
        """CPU seconds of the engine so far, all threads, user and system."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        ticks = stat.rpartition(")")[2].split()[_CPU_FIELDS]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def read_bytes(self) -> int:
        """Bytes that the engine caused devices to read so far."""
        return common.device_bytes(self._process.pid)[0]

    def _ask(self, command: str, *numbers: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join([command, *map(str, numbers)]) + "\n")
        self._process.stdin.flush()
        self._answered("done")

    def _answered(self, expected: str) -> None:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != expected:
            raise RuntimeError(f"the engine ended or answered {answer!r}; its last output is above")


def measure(
    variant: str, number: int, rows: PeerRows, work: Callable[[], int], *, steps: int
) -> dict[str, Any]:
    """Measure one round of a loop over an engine; `work` returns its units. CPU time is that of the loop and the engine."""
    cpu_s, read = rows.cpu_s(), rows.read_bytes()
    sample = common.measure(variant, number, work)
    cpu_s = sample.cpu_s + rows.cpu_s() - cpu_s
    return {
        **vars(sample),
        "cpu_s": cpu_s,
        "rows_per_s": sample.units / sample.wall_s,
        "cpu_us_per_row": 1e6 * cpu_s / sample.units,
        "blocks_read_per_step": (rows.read_bytes() - read) / _BLOCK_BYTES / steps,
    }


def kinds_of(text: str) -> list[str]:
    """Parse names of engines, separated by commas."""
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(
                f"unknown engine {kind!r}: give one or more of {', '.join(KINDS)}"
            )
    return kinds


@contextmanager
def peer_rows(
    program: Path,
    kind: str,
    folder: Path,
    *,
    rows: int,
    row_bytes: int,
    memory: int,
    changes: bool = True,
    keys_max: int = KEYS_MAX,
) -> Generator[PeerRows]:
    """Start an empty engine with room for `rows` rows. `changes`: rows are put back as often as they are read."""
    file = os.memfd_create("rows")
    try:
        os.ftruncate(file, keys_max * (8 + row_bytes))
        options = {
            "folder": folder,
            "rows": rows,
            "row-bytes": row_bytes,
            "memory": memory,
            "changes": str(changes).lower(),
            "batch": keys_max,
            "peer-threads": THREADS[kind],
            "exchange": f"/proc/self/fd/{file}",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (
            memory_group(kind, memory + PROCESS_BYTES) as group,
            subprocess.Popen(
                group.command([str(program), "peer", kind, "rows", *words]),
                pass_fds=[file],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            # The map is not closed: arrays that refer to it may still be in use.
            yield PeerRows(process, mmap.mmap(file, 0), row_bytes // 4, keys_max)
    finally:
        os.close(file)
