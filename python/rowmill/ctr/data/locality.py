"""The distribution of generated ids, fitted to published statistics of production tables.

**Distribution.** The n ids of a table form two pieces, each a Zipf distribution over its own ids. Rank r has a
probability proportional to r^-s. It is sampled by inverting the continuous integral, so the first ranks differ slightly
from the discrete distribution.

* The *long* piece has 90.1 % of the ids, exponent 0.991 and 69.9 % of the draws: hot ids and many ids seen once.
* The *steady* piece has 9.9 % of the ids, exponent 0.707 and 30.1 % of the draws: ids seen about 4 to 32 times each.

**Fit.** The published statistics are ``locality_stats_2021.txt`` of dlrm_datasets, entry ``fbgemm_t856_bs65536_0``:
468 M accesses to 62 M distinct ids of 856 tables, so 547 k accesses per table. They give two histograms over ids grouped
by number of accesses: share of ids and share of accesses per group. With Poisson counts, ``expected_reuse`` computes the
same two histograms of the distribution without drawing. Nelder-Mead over five parameters (share of draws, two exponents,
two piece sizes relative to the accesses) minimised the two total variation distances plus the absolute log ratio of mean
accesses per id. Result: 0.025 (ids), 0.072 (accesses), mean 7.596 against 7.593. One Zipf piece, with or without a shift
of the ranks, reached no better than 0.065 and 0.156. At the fitted point a table has 0.225 ids per access. In logs with
more rows per id, ids repeat more, as in real logs.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REUSE_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
"""Lower edges of the groups of the published histograms: group i holds ids with a count in (edge i, edge i + 1]."""


@dataclass(frozen=True)
class ZipfPiece:
    """A Zipf distribution over ``ids`` ids, with the share ``draws`` of all draws."""

    ids: int
    exponent: float
    draws: float


@dataclass(frozen=True)
class IdLaw:
    """The pieces of one table; ids of the first piece come first."""

    pieces: tuple[ZipfPiece, ...]

    @property
    def ids(self) -> int:
        """Number of ids."""
        return sum(piece.ids for piece in self.pieces)

    def popular(self, ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each rank is among the first 2 % of its piece, or the first 100."""
        popular = np.zeros(len(ranks), dtype=bool)
        first = 0
        for piece in self.pieces:
            popular |= (ranks >= first) & (ranks < first + max(100, piece.ids // 50))
            first += piece.ids
        return popular

    def ranks(self, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        """Map uniform numbers in [0, 1) to ranks in [0, ids)."""
        below, first = 0.0, 0
        out = np.zeros(len(uniform), dtype=np.int64)
        for piece in self.pieces:
            # Compute all draws for every piece, then select: faster than masks.
            scaled = np.clip((uniform - below) / piece.draws, 0.0, 1.0)
            rank = first + np.minimum(_inverse(scaled, piece).astype(np.int64), piece.ids - 1)
            out = np.where(uniform >= below, rank, out)
            below, first = below + piece.draws, first + piece.ids
        return out


# The fitted constants: see the module's docstring.
ACCESSES_PER_TABLE_FITTED = 546_827
IDS_PER_ACCESS_FITTED = 0.2248
_LONG_DRAWS, _LONG_IDS, _LONG_EXPONENT = 0.6995, 0.9014, 0.9909
_STEADY_EXPONENT = 0.7069


def fitted_law(ids: int) -> IdLaw:
    """The fitted distribution for a table of ``ids`` ids."""
    long = round(ids * _LONG_IDS)
    if long == 0 or long == ids:
        return zipf_law(ids, _LONG_EXPONENT)
    return IdLaw(
        (
            ZipfPiece(long, _LONG_EXPONENT, _LONG_DRAWS),
            ZipfPiece(ids - long, _STEADY_EXPONENT, 1.0 - _LONG_DRAWS),
        )
    )


def zipf_law(ids: int, exponent: float) -> IdLaw:
    """One Zipf piece; exponent 0 is uniform."""
    return IdLaw((ZipfPiece(ids, exponent, 1.0),))


def expected_reuse(law: IdLaw, accesses: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Expected number of ids, and of accesses, per group of ``REUSE_EDGES`` after ``accesses`` draws."""
    ids = np.zeros(len(REUSE_EDGES))
    hits = np.zeros(len(REUSE_EDGES))
    for piece in law.pieces:
        # 64 single ranks, then ranges that grow by a few per cent, inside which probabilities hardly vary.
        edges = np.unique(
            np.concatenate([np.arange(64), np.geomspace(64, max(piece.ids, 65), 200)]).astype(
                np.int64
            )
        )
        edges = np.append(edges[edges < piece.ids], piece.ids)
        width = np.diff(edges)
        mean = (
            accesses * piece.draws * np.diff(_cumulative(edges.astype(np.float64), piece)) / width
        )
        at_most = np.stack(
            [_poisson_at_most(edge, mean) for edge in REUSE_EDGES] + [np.ones_like(mean)], axis=1
        )
        fewer = np.stack(
            [_poisson_at_most(edge - 1, mean) for edge in REUSE_EDGES] + [np.ones_like(mean)],
            axis=1,
        )
        ids += (width[:, None] * np.diff(at_most, axis=1)).sum(axis=0)
        hits += ((width * mean)[:, None] * np.diff(fewer, axis=1)).sum(axis=0)
    return ids, hits


def measured_reuse(ids: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Number of ids, and of accesses, per group of ``REUSE_EDGES`` in drawn ids."""
    _, counts = np.unique(ids, return_counts=True)
    group = np.searchsorted(np.array(REUSE_EDGES), counts, side="left") - 1
    size = len(REUSE_EDGES)
    ids_per_group = np.bincount(group, minlength=size).astype(np.float64)
    return ids_per_group, np.bincount(group, weights=counts, minlength=size).astype(np.float64)


def _inverse(uniform: NDArray[np.float64], piece: ZipfPiece) -> NDArray[np.float64]:
    if math.isclose(piece.exponent, 1.0, abs_tol=1e-6):
        return np.exp(uniform * math.log(piece.ids + 1)) - 1.0
    power = 1.0 - piece.exponent
    return (uniform * ((piece.ids + 1) ** power - 1.0) + 1.0) ** (1.0 / power) - 1.0


def _cumulative(rank: NDArray[np.float64], piece: ZipfPiece) -> NDArray[np.float64]:
    if math.isclose(piece.exponent, 1.0, abs_tol=1e-6):
        return np.log(rank + 1.0) / math.log(piece.ids + 1)
    power = 1.0 - piece.exponent
    return ((rank + 1.0) ** power - 1.0) / ((piece.ids + 1) ** power - 1.0)


def _poisson_at_most(count: int, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Poisson(mean) <= count); for counts above 64 by the normal approximation of the square root (error < 0.002)."""
    if count < 0:
        return np.zeros_like(mean)
    if count <= 64:
        term = np.exp(-np.minimum(mean, 700.0))
        total = term.copy()
        for k in range(1, count + 1):
            term = term * mean / k
            total += term
        return np.where(mean > 700.0, 0.0, np.minimum(total, 1.0))
    z = 2.0 * (math.sqrt(count + 0.75) - np.sqrt(mean))
    return 0.5 * (1.0 + np.vectorize(math.erf)(z / math.sqrt(2.0)))
