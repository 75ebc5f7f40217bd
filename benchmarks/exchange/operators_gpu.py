"""Operators of an exchange on a GPU, timed by events of the device, with deduplication compared to torch's.

An operator synchronizes with the device only to read the number of distinct ids. These synchronizations are counted too.
"""

from __future__ import annotations

import time
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks import common
from benchmarks.exchange.cells import IDS, draw, zipf_shares
from rowmill.ops.exchange import Bags, Message, RecoveredFeature
from rowmill.ops.exchange import triton as kernels

if TYPE_CHECKING:
    from collections.abc import Callable

CATEGORIES = 57
RANKS = 4
DIMS = (4, 16, 64)
"""Dims of rows, assigned to categories in rotation."""
LOOKUPS = 1_000_000


class Work:
    """The same ids for every operator; each operator is a method without arguments.

    Args:
        device: Device of the tensors.
        categories: Number of categories, with equally many ids each.
        lookups: Number of ids in total, rounded down to a multiple of `categories`.
        seed: Seed of the ids.
    """

    def __init__(self, device: torch.device, *, categories: int, lookups: int, seed: int) -> None:
        size = lookups // categories
        random = np.random.default_rng(seed)
        drawn = draw(random, zipf_shares(IDS, 1.05), size * categories)
        # Ids have 48 bits, so the category fits into the bits above.
        keys = drawn | np.repeat(np.arange(categories, dtype=np.int64) << 48, size)
        self.ids, self.keys = torch.from_numpy(drawn).to(device), torch.from_numpy(keys).to(device)
        self.offsets = list(range(0, len(drawn) + 1, size))
        self.categories = list(range(categories))
        dims = [DIMS[category % len(DIMS)] for category in self.categories]
        self.unique = kernels.segment_unique(self.ids, self.offsets, [None] * categories)
        if len(self.unique.ids) != len(np.unique(keys)):
            raise RuntimeError("all variants must find the same number of distinct ids")
        self.sent = kernels.rank_sort(self.unique, self.categories, RANKS)
        # As if one rank owned all the ids that it sends.
        self.owned = kernels.owner_unique(self.sent.ids, self.sent.counts, categories)
        self.message = Message(self.sent.counts, dims)
        floats = sum(Message(self.owned.counts, dims).floats_by_rank)
        self.rows = torch.rand(floats, device=device)
        self.wire = kernels.pack(self.rows, self.owned, self.message)
        columns = [0, *np.cumsum(dims).tolist()]
        self.bags = Bags(
            self.message,
            kernels.combine(self.unique.inverse, self.sent.positions),
            torch.arange(len(drawn) + 1, device=device),
            None,
            [RecoveredFeature(dim, columns[at], False) for at, dim in enumerate(dims)],
            size,
            columns[-1],
        )
        self.gradient = torch.rand(size, columns[-1], device=device)

    def segment_unique(self) -> None:
        """Our deduplication of all categories."""
        kernels.segment_unique(self.ids, self.offsets, [None] * len(self.categories))

    def torch_unique(self) -> None:
        """torch.unique per category."""
        for begin, end in pairwise(self.offsets):
            torch.unique(self.ids[begin:end], return_inverse=True)

    def torch_unique_of_keys(self) -> None:
        """One torch.unique over keys of category and id."""
        torch.unique(self.keys, return_inverse=True)

    def rank_sort(self) -> None:
        """Sort distinct ids by owner rank."""
        kernels.rank_sort(self.unique, self.categories, RANKS)

    def owner_unique(self) -> None:
        """Deduplicate the ids that all ranks sent to an owner."""
        kernels.owner_unique(self.sent.ids, self.sent.counts, len(self.categories))

    def combine(self) -> None:
        """Gather the row of every lookup."""
        kernels.combine(self.unique.inverse, self.sent.positions)

    def pack(self) -> None:
        """Pack rows into a message."""
        kernels.pack(self.rows, self.owned, self.message, self.wire)

    def recover(self) -> None:
        """Pool received rows, with one row per bag."""
        kernels.recover(self.wire, self.bags)

    def recover_backward(self) -> None:
        """Compute the gradients of received rows."""
        kernels.recover_backward(self.gradient, self.bags)

    def weights_backward(self) -> None:
        """Compute the gradients of per-lookup weights."""
        kernels.weights_backward(self.wire, self.gradient, self.bags)

    def unpack_add(self) -> None:
        """Sum received gradients per distinct row."""
        kernels.unpack_add(self.wire, self.owned, self.message)


def measure(
    benchmark: common.Benchmark,
    device: torch.device,
    *,
    rounds: int,
    categories: int = CATEGORIES,
    lookups: int = LOOKUPS,
) -> None:
    """Measure milliseconds of every operator, and of `segment_unique` relative to torch, per round.

    Args:
        benchmark: Receives the results.
        device: A GPU. On the CPU, for tests, kernels run in Triton's interpreter and times are meaningless.
        rounds: Number of rounds.
        categories: Number of categories.
        lookups: Number of ids in total.
    """
    work = Work(device, categories=categories, lookups=lookups, seed=benchmark.settings.seed)
    operators: list[Callable[[], None]] = [
        work.segment_unique,
        work.torch_unique,
        work.torch_unique_of_keys,
        work.rank_sort,
        work.owner_unique,
        work.combine,
        work.pack,
        work.recover,
        work.recover_backward,
        work.weights_backward,
        work.unpack_add,
    ]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    taken: dict[str, list[float]] = {operator.__name__: [] for operator in operators}
    for number in range(-1, rounds):  # The first round is a warm-up.
        first = number % len(operators)
        for operator in operators[first:] + operators[:first]:
            ms = milliseconds(operator, device)
            if number >= 0:
                taken[operator.__name__].append(ms)
                variant = {"variant": operator.__name__, "round": number}
                benchmark.cells.append({**variant, "ms": ms, "device": name})
    for variant, ms in taken.items():
        benchmark.summarize(f"gpu_{variant}_ms", common.Median.of(ms))
    for peer in ("torch_unique", "torch_unique_of_keys"):
        gains = zip(taken[peer], taken["segment_unique"], strict=True)
        gain = common.Median.of(theirs / ours for theirs, ours in gains)
        benchmark.summarize(f"gpu_unique_over_{peer}", gain)
    if device.type == "cuda":
        for operator in operators:
            benchmark.summary[f"gpu_{operator.__name__}_waits"] = waits(operator)


def milliseconds(operator: Callable[[], None], device: torch.device) -> float:
    """Milliseconds from the start of a call until the device has finished."""
    if device.type != "cuda":
        begun = time.perf_counter()
        operator()
        return (time.perf_counter() - begun) * 1e3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    operator()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def waits(operator: Callable[[], None]) -> int:
    """Number of times that a call synchronizes with the device."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            operator()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in seen)
