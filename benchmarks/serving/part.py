"""What every part of the benchmark takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.bundles import Bundles
from benchmarks.serving.cells import Cells
from benchmarks.serving.settings import Settings


@dataclass(frozen=True)
class Part:
    """Where models come from, and where measurements go.

    Attributes:
        settings: Sizes and times.
        bundles: The models.
        cells: The measurements.
        folder: For logs and sockets.
    """

    settings: Settings
    bundles: Bundles
    cells: Cells
    folder: Path


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The order of variants in a round: each round starts with the next one."""
    first = number % len(names)
    return [*names[first:], *names[:first]]
