"""A model of the time of a step of `benchmarks/exchange`, computed from the times of messages and kernels.

A step consists of work and messages. The time of work depends on its amounts (`Kernels`), and is longer if all cores are
busy or if there are more ranks than cores. The time of a message is the larger of two: the time of its link, a constant
plus a time per byte that leaves a rank (`Curve`); and the time of the cores, which process the messages of all ranks.
The allreduce of dense gradients overlaps with the row gradients in reality; the model runs them in sequence.
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
"""Numbers in the header of the counts that every rank sends to every other one."""


@dataclass(frozen=True)
class Work:
    """The amounts of work in one step of one rank.

    Attributes:
        steps: Always 1: the constant part of a step.
        categories: Categories in its batch.
        ids: Ids in its batch.
        row_weights: Weights of its distinct rows; it serves about as many to other ranks.
        pooled_weights: Weights of its pooled vectors.
    """

    steps: float
    categories: float
    ids: float
    row_weights: float
    pooled_weights: float

    def values(self) -> list[float]:
        """The amounts in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True)
class Sends:
    """Bytes sent in one step.

    Attributes:
        to_all: Per all-to-all, the bytes for all ranks together, itself included.
        to_each: Per all-to-all of fixed size, the bytes for each other rank.
        sums: Per allreduce, the bytes of the tensor.
    """

    to_all: tuple[float, ...]
    to_each: tuple[float, ...]
    sums: tuple[float, ...]

    def leaving(self, ranks: int) -> list[float]:
        """Per all-to-all, the bytes that leave a rank."""
        others = ranks - 1
        parts = [size * others / ranks for size in self.to_all]
        return parts + [size * others for size in self.to_each]


def of_cell(cell: Cell, seed: int) -> tuple[Work, Sends]:
    """Work and bytes of one rank, counted on the batches of one rank."""
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
"""Messages up to this size take only the constant time, on all links here."""


@dataclass(frozen=True)
class Curve:
    """Seconds of a message by its size: a constant alpha, and a time per byte beta for each range of sizes.

    One beta for all sizes does not fit: over slow links a long message takes up to 1.6 times as long per byte as a short
    one, which queues absorb.

    Attributes:
        start_s: Seconds of an empty message.
        sizes: Ends of the ranges in bytes, ascending; the last range extends beyond its end.
        seconds: Seconds of messages of these sizes.
    """

    start_s: float
    sizes: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    def of(self, size: float, starts: float = 1.0) -> float:
        """Seconds of `starts` messages in sequence with `size` bytes in total."""
        xs, ys = (0.0, *self.sizes), (self.start_s, *self.seconds)
        # The range of the size: the first whose end is not smaller, or else the last.
        at = min(sum(x < size for x in xs), len(xs) - 1)
        slope = (ys[at] - ys[at - 1]) / (xs[at] - xs[at - 1]) if at else 0.0
        return self.start_s * (starts - 1) + ys[at] + slope * (size - xs[at])


@dataclass(frozen=True)
class Link:
    """Times of collectives between two ranks over one class of links: wall time, and CPU time per rank.

    Attributes:
        exchange: Wall time of an all-to-all by the bytes that leave a rank.
        exchange_cpu: CPU time of the same.
        allreduce: Wall time of an allreduce by the bytes of the tensor.
        allreduce_cpu: CPU time of the same.
    """

    exchange: Curve
    exchange_cpu: Curve
    allreduce: Curve
    allreduce_cpu: Curve

    def exchanges_s(self, sends: Sends, ranks: int, cores: float) -> float:
        """Seconds of all all-to-alls of a step, for ranks that share `cores` cores."""
        return sum(
            max(self.exchange.of(size), ranks / cores * self.exchange_cpu.of(size, ranks - 1))
            for size in sends.leaving(ranks)
        )

    def sums_s(self, sends: Sends, ranks: int, cores: float) -> float:
        """Seconds of all allreduces of a step, for ranks that share `cores` cores.

        A ring sends the parts of a tensor around twice; between two ranks that is the size of the tensor.
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
    """Seconds per unit of each amount in `Work`, in one thread, with one busy core and with all busy."""

    alone: tuple[float, ...]
    beside: tuple[float, ...]

    def seconds(self, work: Work, ranks: int, cores: float) -> float:
        """Seconds of one rank's work, if all ranks work at the same time."""
        each = self.alone if ranks == 1 else self.beside
        return max(1.0, ranks / cores) * float(np.dot(each, work.values()))


@dataclass(frozen=True)
class Step:
    """Seconds of a step, by part."""

    work_s: float
    exchanges_s: float
    sums_s: float

    @property
    def rows_s(self) -> float:
        """Seconds without the allreduce of dense gradients."""
        return self.work_s + self.exchanges_s

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return self.rows_s + self.sums_s


def predict(kernels: Kernels, link: Link, cell: Cell, seed: int, cores: float) -> Step:
    """Predict the time of a step."""
    work, sends = of_cell(cell, seed)
    of_messages = sends, cell.ranks, cores
    return Step(
        kernels.seconds(work, cell.ranks, cores),
        link.exchanges_s(*of_messages),
        link.sums_s(*of_messages),
    )


def scaling(steps_s: Mapping[int, float]) -> dict[int, float]:
    """Samples per second and rank, relative to the smallest number of ranks; 1 if a step takes as long (weak scaling).

    Examples:
        >>> scaling({8: 1.0, 16: 1.25})
        {8: 1.0, 16: 0.8}
    """
    base = steps_s[min(steps_s)]
    return {ranks: base / seconds for ranks, seconds in steps_s.items()}


# Fitting.


def fit_curve(seconds: Mapping[int, float]) -> Curve:
    """Fit a curve: the constant is the median of small messages, and ranges end at the sizes of the larger ones.

    Args:
        seconds: Seconds by size in bytes; some sizes must be small.
    """
    sizes = sorted(size for size in seconds if size > SMALL_BYTES)
    start = float(np.median([taken for size, taken in seconds.items() if size <= SMALL_BYTES]))
    # Times must not fall with size: a larger message that took less time is noise.
    rising = np.maximum.accumulate([start, *(seconds[size] for size in sizes)])
    return Curve(start, tuple(map(float, sizes)), tuple(map(float, rising[1:])))


def fit_work(works: Sequence[Work], seconds: Sequence[float]) -> tuple[float, ...]:
    """Fit the seconds per unit of each amount of work: least squares of relative errors, none below 0."""
    return tuple(not_negative([work.values() for work in works], seconds))


def not_negative(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Least squares of relative errors with weights of at least 0.

    Tries every subset of weights that may be above 0; there are few weights.
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
