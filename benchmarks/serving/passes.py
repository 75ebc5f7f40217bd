"""Which ways are measured at the same time: the workers of all of them have all rows in memory."""

from collections.abc import Sequence
from pathlib import Path

BASE = "all"
"""The way that all others are compared with, so every pass has it."""
_ROWS_WITH_INDEX = 1.1
"""Memory of rows, over their bytes."""
_PROCESSES_BYTES = 1 << 30
"""Besides rows, of the processes of one way: torch, and requests on their way."""
_SHARE = 0.9
"""Of the memory that is available: what two ways may take."""
_SHARE_OF_MORE = 0.6
"""The same, of more than two. Linux has huge pages only while much memory is free, and lookups in small pages take longer."""


def passes(ways: Sequence[str], row_bytes: int, available: int) -> list[list[str]]:
    """Ways that fit into memory together; `BASE` is in each pass.

    Args:
        ways: `BASE` and others.
        row_bytes: Of a model.
        available: Bytes of memory.

    Raises:
        MemoryError: If two ways do not fit.
    """
    of_way = int(row_bytes * _ROWS_WITH_INDEX) + _PROCESSES_BYTES
    others = [way for way in ways if way != BASE]
    if 2 * of_way > available * _SHARE:
        gib = 2 * of_way / _SHARE / 2**30
        raise MemoryError(
            f"{gib:.1f} GiB of available memory are needed, there are {available / 2**30:.1f}"
        )
    room = max(int(available * _SHARE_OF_MORE) // of_way - 1, 1)
    return [[BASE, *others[first : first + room]] for first in range(0, len(others), room)]


def bytes_available() -> int:
    """What Linux can give to new processes without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
