"""What a run of the benchmark measures, and for how long."""

from dataclasses import dataclass

from benchmarks.serving.shapes import SPLIT, Shape
from benchmarks.serving.ways import WAYS

SENDERS = 30
SLO_OVER_SEQUENTIAL = 20


@dataclass(frozen=True)
class Settings:
    """Sizes and times.

    Attributes:
        models: The models of the comparison of halves.
        ways: How they are served.
        rows: Rows of each table.
        count: Distinct requests.
        rounds: Of every comparison.
        sequential_s: Seconds of a cell with one sender.
        split_s: Seconds of a cell of two halves with a rate, or with many senders.
        loaded_s: The same, of other servers and of overload.
        overload_s: Seconds of overload.
        round_trips: Of the messages of 4 MiB, in a round.
        stall_gib: Sizes of the memory whose accesses are timed, in GiB.
        stall_s: Seconds for each size.
    """

    models: tuple[Shape, ...]
    ways: tuple[str, ...]
    rows: int
    count: int
    rounds: int
    sequential_s: float
    split_s: float
    loaded_s: float
    overload_s: float
    round_trips: int
    stall_gib: tuple[float, ...]
    stall_s: float


FULL = Settings(SPLIT, WAYS, 200_000, 64, 5, 5.0, 6.0, 10.0, 30.0, 500, (0.5, 2, 4, 8), 5.0)
QUICK = Settings(
    (SPLIT[0], SPLIT[4]), WAYS, 20_000, 16, 1, 2.0, 4.0, 4.0, 10.0, 100, (0.25, 0.5), 1.0
)
