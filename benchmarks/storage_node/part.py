"""What every part of the benchmark takes."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.cells import Cells
from benchmarks.storage_node.settings import Settings
from benchmarks.storage_node.stores import Stores


@dataclass(frozen=True)
class Part:
    """Where stores come from, and where measurements go.

    Attributes:
        settings: Sizes and times.
        stores: The stores.
        cells: The measurements.
        folder: For settings and logs of nodes, and for the rows of those that are filled.
        seed: Of ids.
    """

    settings: Settings
    stores: Stores
    cells: Cells
    folder: Path
    seed: int


def two_cores() -> tuple[int, int]:
    """A core for the node and one for the host."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("this part needs two cores: one for the node and one for the host")
    return cores[0], cores[1]
