"""A model of the time of a step of `benchmarks/exchange`, computed from the times of messages and kernels.

A step consists of work and messages. The time of work depends on its amounts (`Kernels`) and on whether rows or pooled vectors
are sent. It is longer if all cores are busy or if there are more ranks than cores. The time of a message is the larger of two:
the time of its link, a constant plus a time per byte that leaves a rank (`Curve`); and the time of the cores, which process
the messages of all ranks. The allreduce of dense gradients overlaps with the row gradients in reality; the model runs them in
sequence.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchmarks.exchange.cells import IDS, zipf_shares
from benchmarks.exchange.rank import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from benchmarks.exchange.cells import Cell
    from rowmill.distributed import PlacementKind

Kind = Literal["rows", "vectors"]
"""What the ranks that keep a table send: its placement is `rows`, or `pooled` or `whole`."""

ID_BYTES = 8
WEIGHT_BYTES = 4
LENGTH_BYTES = 4
"""Bytes of the length of a bag."""
COUNTS_HEAD = 2
"""Numbers in the header of the counts that every rank sends to every other one."""


@dataclass(frozen=True)
class Work:
    """The amounts of work that one rank has in a step, for tables of one kind.

    Attributes:
        share: Share of the step's categories that are of this kind. Kinds share the constant part of a step accordingly.
        categories: Categories of this kind.
        ids: Ids in the bags of these categories.
        row_weights: Weights of distinct rows.
        gathered_weights: Weights that are added to pooled vectors: those of each id's row.
        vector_weights: Weights of pooled vectors.
    """

    share: float = 0.0
    categories: float = 0.0
    ids: float = 0.0
    row_weights: float = 0.0
    gathered_weights: float = 0.0
    vector_weights: float = 0.0

    def values(self) -> list[float]:
        """The amounts in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    def plus(self, other: Work) -> Work:
        """The sum of both."""
        return Work(*map(operator.add, self.values(), other.values()))


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


@dataclass(frozen=True)
class Load:
    """Work by kind, and bytes, of the busiest rank in a step."""

    work: Mapping[Kind, Work]
    sends: Sends


def of_cell(cell: Cell, placements: Sequence[PlacementKind] = ("rows",)) -> Load:
    """Expected work and bytes of a step.

    Args:
        cell: The cell.
        placements: Placements of the categories, assigned in rotation, as dims are. Tables that are `whole` are spread evenly;
            where their number is no multiple of the ranks, the busiest rank has one more than others.
    """
    kinds = [placements[n % len(placements)] for n in range(cell.categories)]
    whole, ranks = kinds.count("whole"), cell.ranks
    busiest = math.ceil(whole / ranks) * ranks / whole if whole else 1.0
    work: dict[Kind, Work] = {}
    ids_sent = rows_sent = 0.0
    for category, placement in enumerate(kinds):
        dim, ids = cell.dims[category % len(cell.dims)], cell.batch * cell.bag
        factor = busiest if placement == "whole" else 1.0
        if placement == "rows":
            kind, vectors, distinct = "rows", cell.batch, expected_distinct(cell.zipf, ids)
            sent = ID_BYTES * distinct, WEIGHT_BYTES * distinct * dim
        else:
            # Ranks that keep rows read them once for all ranks. If they are spread, each rank has a vector of each bag.
            kind, vectors = "vectors", cell.batch * (ranks if placement == "pooled" else 1)
            distinct = expected_distinct(cell.zipf, ids * ranks) / ranks
            sent = ID_BYTES * ids + LENGTH_BYTES * vectors, WEIGHT_BYTES * vectors * dim
        amounts = 1.0, ids, distinct * dim, ids * dim, vectors * dim
        found = Work(1 / cell.categories, *(factor * amount for amount in amounts))
        work[kind] = work.get(kind, Work()).plus(found)
        ids_sent += sent[0] * factor
        rows_sent += sent[1] * factor
    dense = (cell.width * HIDDEN + HIDDEN) + (HIDDEN + 1)
    return Load(
        work,
        Sends(
            to_all=(ids_sent, rows_sent, rows_sent),
            to_each=(8.0 * (COUNTS_HEAD + cell.categories), 8.0),
            sums=(8.0, WEIGHT_BYTES * dense),
        ),
    )


@lru_cache
def expected_distinct(zipf: float, draws: int) -> float:
    """Expected number of distinct ids among some draws."""
    shares = np.diff(zipf_shares(IDS, zipf), prepend=0.0)
    return float(-np.expm1(draws * np.log1p(-shares)).sum())


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

    def limited(self, bytes_per_s: float) -> Curve:
        """The curve of messages that also pass a link of this rate."""
        pairs = zip(self.sizes, self.seconds, strict=True)
        passed = (max(seconds, self.start_s + size / bytes_per_s) for size, seconds in pairs)
        return Curve(self.start_s, self.sizes, tuple(passed))


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

    def limited(self, bytes_per_s: float) -> Link:
        """The times if messages also pass links of this rate; CPU time does not change."""
        exchange, allreduce = (of.limited(bytes_per_s) for of in (self.exchange, self.allreduce))
        return replace(self, exchange=exchange, allreduce=allreduce)

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
    """Seconds per unit of each amount in `Work` by kind, in one thread, with one busy core and with all busy."""

    alone: Mapping[Kind, tuple[float, ...]]
    beside: Mapping[Kind, tuple[float, ...]]

    def seconds(self, work: Mapping[Kind, Work], ranks: int, cores: float) -> float:
        """Seconds of one rank's work, if all ranks work at the same time."""
        each = self.alone if ranks == 1 else self.beside
        seconds = sum(float(np.dot(each[kind], of.values())) for kind, of in work.items())
        return max(1.0, ranks / cores) * seconds


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


def predict(
    kernels: Kernels, link: Link, cell: Cell, placements: Sequence[PlacementKind], cores: float
) -> Step:
    """Predict the time of a step, for placements as in `of_cell`."""
    load = of_cell(cell, placements)
    of_messages = load.sends, cell.ranks, cores
    return Step(
        kernels.seconds(load.work, cell.ranks, cores),
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
