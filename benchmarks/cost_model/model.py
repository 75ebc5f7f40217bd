"""What a step of `benchmarks/exchange` takes, out of what messages and kernels take: arithmetic only.

A step is work, and messages between. Work takes a time by what it goes through (`Kernels`), longer where all cores are busy,
and longer by as much as there are more ranks than cores. A message takes the longer of two times: that of its link, a start
and a time for each byte that leaves a rank (`Curve`); and that of the cores, which carry the messages of all ranks. What a step
does at once, the sum of dense gradients beside those of rows, the model does one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.exchange.rank import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.exchange.cells import Cell

ID_BYTES = 8
WEIGHT_BYTES = 4
COUNTS_HEAD = 2
"""Numbers in front of the counts that every rank tells every other one."""


@dataclass(frozen=True)
class Work:
    """What a step of one rank goes through.

    Attributes:
        steps: 1: what every step takes.
        categories: Of its batch.
        ids: Of its batch.
        row_weights: Weights of its distinct rows, which are as many as those it is asked for.
        pooled_weights: Weights of its pooled vectors.
    """

    steps: float
    categories: float
    ids: float
    row_weights: float
    pooled_weights: float

    def values(self) -> list[float]:
        """In the order of fields."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Sends:
    """Bytes of a step.

    Attributes:
        to_all: Of every all-to-all: what a rank has for all ranks, itself included.
        to_each: Of every all-to-all of fixed size: what a rank has for each other one.
        sums: Of every allreduce: the tensor's.
    """

    to_all: tuple[float, ...]
    to_each: tuple[float, ...]
    sums: tuple[float, ...]

    def leaving(self, ranks: int) -> list[float]:
        """Bytes of every all-to-all that leave a rank."""
        others = ranks - 1
        parts = [size * others / ranks for size in self.to_all]
        return parts + [size * others for size in self.to_each]


def of_cell(cell: Cell, seed: int) -> tuple[Work, Sends]:
    """Work and bytes of one rank, counted on the batches of one."""
    dims = np.array([cell.dims[n % len(cell.dims)] for n in range(cell.categories)], np.float64)
    distinct = np.zeros(cell.categories)
    for batch in cell.batches(cell.steps, seed):
        ids_MB = batch.values.view(cell.categories, cell.batch).numpy()
        distinct += [len(np.unique(ids_B)) / cell.steps for ids_B in ids_MB]
    rows, width = float(distinct @ dims), float(dims.sum())
    work = Work(1, cell.categories, cell.batch * cell.categories, rows, cell.batch * width)
    dense = (width * HIDDEN + HIDDEN) + (HIDDEN + 1)
    return work, Sends(
        to_all=(ID_BYTES * float(distinct.sum()), WEIGHT_BYTES * rows, WEIGHT_BYTES * rows),
        to_each=(8.0 * (COUNTS_HEAD + cell.categories), 8.0),
        sums=(8.0, WEIGHT_BYTES * dense),
    )


SMALL_BYTES = 4096
"""A message of as much is all start, on every link here."""


@dataclass(frozen=True)
class Curve:
    """Seconds of a message by its size: a start, alpha, and a time for each byte, beta, of every range of sizes.

    One beta for all sizes does not do: over slow links a long message takes up to 1.6 times as long for a byte as a short
    one, which queues swallow.

    Attributes:
        start_s: Of a message of no bytes.
        sizes: Where ranges end, rising; the last goes on.
        seconds: Of messages of these sizes.
    """

    start_s: float
    sizes: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    def of(self, size: float, starts: float = 1.0) -> float:
        """Seconds of so many bytes in so many messages, one after the other."""
        xs, ys = (0.0, *self.sizes), (self.start_s, *self.seconds)
        # The range in which the size lies: that of the first end that is not below it, or the last.
        at = min(sum(x < size for x in xs), len(xs) - 1)
        slope = (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1]) if at else 0.0
        return self.start_s * (starts - 1) + ys[at] + slope * (size - xs[at])


@dataclass(frozen=True)
class Link:
    """What collectives of two ranks take over links of one class, by the clock, and of the cores for each rank.

    Attributes:
        exchange: All-to-all, by the bytes that leave a rank.
        exchange_cpu: The same, of the cores.
        allreduce: By the bytes of the tensor.
        allreduce_cpu: The same, of the cores.
    """

    exchange: Curve
    exchange_cpu: Curve
    allreduce: Curve
    allreduce_cpu: Curve

    def exchanges_s(self, sends: Sends, ranks: int, cores: float) -> float:
        """Seconds of all all-to-alls of a step, of ranks that share so many cores."""
        return sum(
            max(self.exchange.of(size), ranks / cores * self.exchange_cpu.of(size, ranks - 1))
            for size in sends.leaving(ranks)
        )

    def sums_s(self, sends: Sends, ranks: int, cores: float) -> float:
        """The same of all allreduces.

        A ring sends one part of a tensor after the other, twice around; of two ranks that is the tensor.
        """
        others = ranks - 1
        return sum(
            max(
                self.allreduce.of(size, others), ranks / cores * self.allreduce_cpu.of(size, others)
            )
            for size in (size * 2 * others / ranks for size in sends.sums)
        )


@dataclass(frozen=True)
class Kernels:
    """Seconds of each thing that `Work` counts, in one thread, with one core busy and with all."""

    alone: tuple[float, ...]
    beside: tuple[float, ...]

    def seconds(self, work: Work, ranks: int, cores: float) -> float:
        """Seconds of the work of every rank."""
        each = self.alone if ranks == 1 else self.beside
        return max(1.0, ranks / cores) * float(np.dot(each, work.values()))


@dataclass(frozen=True)
class Step:
    """Seconds of a step and of its parts."""

    work_s: float
    exchanges_s: float
    sums_s: float

    @property
    def rows_s(self) -> float:
        """Without the sums of dense gradients."""
        return self.work_s + self.exchanges_s

    @property
    def step_s(self) -> float:
        """All of it."""
        return self.rows_s + self.sums_s


def predict(kernels: Kernels, link: Link, cell: Cell, seed: int, cores: float) -> Step:
    """What a step takes."""
    work, sends = of_cell(cell, seed)
    of_messages = sends, cell.ranks, cores
    return Step(
        kernels.seconds(work, cell.ranks, cores),
        link.exchanges_s(*of_messages),
        link.sums_s(*of_messages),
    )


def scaling(steps_s: Mapping[int, float]) -> dict[int, float]:
    """Samples per second and rank over those of the fewest ranks: each has its own batch, so a step that takes as long is 1.

    Examples:
        >>> scaling({8: 1.0, 16: 1.25})
        {8: 1.0, 16: 0.8}
    """
    base = steps_s[min(steps_s)]
    return {ranks: base / seconds for ranks, seconds in steps_s.items()}


# Fits.


def fit_curve(seconds: Mapping[int, float]) -> Curve:
    """The start is the median of small messages; ranges end at the sizes of the others.

    Args:
        seconds: By size, some of them small.
    """
    sizes = sorted(size for size in seconds if size > SMALL_BYTES)
    start = float(np.median([taken for size, taken in seconds.items() if size <= SMALL_BYTES]))
    # A message of more bytes that took less time was lucky.
    rising = np.maximum.accumulate([start, *(seconds[size] for size in sizes)])
    return Curve(start, tuple(map(float, sizes)), tuple(map(float, rising[1:])))


def fit_work(works: Sequence[Work], seconds: Sequence[float]) -> tuple[float, ...]:
    """Seconds of each thing that works have, whose relative errors are least; none is below 0."""
    return tuple(not_negative([work.values() for work in works], seconds))


def not_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Least squares of relative errors over weights of at least 0: the best of all choices of which are above it.

    There are few weights, so all choices can be tried.
    """
    matrix: NDArray[np.float64] = np.array(rows, np.float64) / np.array(wanted)[:, None]
    best, least = np.zeros(matrix.shape[1]), float(len(rows))
    for chosen in range(1, 1 << matrix.shape[1]):
        columns = [n for n in range(matrix.shape[1]) if chosen >> n & 1]
        found = np.linalg.lstsq(matrix[:, columns], np.ones(len(rows)))[0]
        error = float(((matrix[:, columns] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            least, best = error, np.zeros(matrix.shape[1])
            best[columns] = found
    return [float(value) for value in best]
