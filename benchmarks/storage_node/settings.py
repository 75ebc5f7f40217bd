"""What a run of the benchmark measures, and for how long."""

from dataclasses import dataclass

MIB = 1 << 20
BATCH = 64
"""Samples of a request, where nothing else is said."""


@dataclass(frozen=True)
class Settings:
    """Sizes and times.

    Attributes:
        rounds: Of every part.
        rows: Rows of each of the tables.
        seconds: Of a round of `pooling`, of `cold`, of its probe, and of the lookups of `memory`.
        warm_s: Lookups before the first round of `cold`.
        samples: Requests of a round of `sample`.
        fresh_s: Seconds of a round of `fresh`.
        memory_mib: Memory of the node of `memory`, below the size of the rows.
    """

    rounds: int
    rows: int
    seconds: float
    warm_s: float
    samples: int
    fresh_s: float
    memory_mib: int


FULL = Settings(5, 1_000_000, 10.0, 60.0, 5_000, 30.0, 256)
QUICK = Settings(3, 100_000, 3.0, 5.0, 1_000, 10.0, 64)
TINY = Settings(1, 100_000, 0.3, 0.3, 20, 1.5, 64)
"""Shows that the parts work; its figures mean nothing."""

BYTES_ROWS = 1_000_000
"""Rows of each table of `bytes`: these tables take no room."""
