"""Operators of an exchange on the CPU, compared with torch and NumPy functions for the same work."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from benchmarks import common
from benchmarks.exchange.cells import IDS, draw, zipf_shares
from rowmill.ops.exchange import rank_sort, segment_unique

CATEGORIES = 57
RANKS = 4
SHAPES = {"one": 1, "many": 20}
"""Ids per sample and category."""


class Work:
    """The same ids for every variant; each method returns the number of ids it processed."""

    def __init__(self, size: int, repeats: int, seed: int) -> None:
        drawn = draw(np.random.default_rng(seed), zipf_shares(IDS, 1.05), size * CATEGORIES)
        self.ids = torch.from_numpy(drawn)
        self.offsets = list(range(0, len(drawn) + 1, size))
        # Ids have 48 bits, so the category fits into the bits above.
        self.composite = drawn | np.repeat(np.arange(CATEGORIES, dtype=np.int64) << 48, size)
        self.repeats = repeats
        self.unique = segment_unique(self.ids, self.offsets, [None] * CATEGORIES)
        if len(self.unique.ids) != len(np.unique(self.composite)):
            raise RuntimeError("all variants must find the same number of distinct ids")

    def segment_unique(self) -> int:
        """Our operator for all categories."""
        for _ in range(self.repeats):
            segment_unique(self.ids, self.offsets, [None] * CATEGORIES)
        return self.repeats * len(self.ids)

    def torch_unique(self) -> int:
        """torch.unique per category; on the CPU it always sorts."""
        for begin, end in pairwise(self.offsets):
            torch.unique(self.ids[begin:end], return_inverse=True)
        return len(self.ids)

    def numpy_unique(self) -> int:
        """One numpy.unique over keys of category and id."""
        np.unique(self.composite, return_inverse=True)
        return len(self.composite)

    def rank_sort(self) -> int:
        """Our sort of distinct ids by owner rank."""
        for _ in range(self.repeats):
            rank_sort(self.unique, range(CATEGORIES), RANKS)
        return self.repeats * len(self.unique.ids)


def measure(benchmark: common.Benchmark, *, batch: int, rounds: int, repeats: int) -> None:
    """Measure deduplication of ids of many categories, and the sort by rank.

    Args:
        benchmark: Receives the results.
        batch: Number of samples.
        rounds: Number of interleaved rounds.
        repeats: Calls of our operators per round.
    """
    for shape, per_sample in SHAPES.items():
        work = Work(batch * per_sample, repeats, benchmark.settings.seed)
        named = (work.segment_unique, work.torch_unique, work.numpy_unique, work.rank_sort)
        variants = {f"{method.__name__}_{shape}": method for method in named}
        own, by_category, by_key, sorts = benchmark.compare(variants, rounds=rounds).values()
        benchmark.summarize(f"unique_{shape}_over_torch", common.ratio(own, by_category))
        benchmark.summarize(f"unique_{shape}_over_numpy", common.ratio(own, by_key))
        for name, of in ((f"unique_{shape}", own), (f"rank_sort_{shape}", sorts)):
            per_id = common.Median.of(sample.wall_s * 1e9 / sample.units for sample in of)
            benchmark.summarize(f"{name}_ns_per_id", per_id)
