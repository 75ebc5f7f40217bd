"""The probe of links and cores: measures the `Speeds` from which placements are planned.

All ranks measure at the same time, as they work in a step, and the slowest rank counts. The result goes to a file: a run
itself times nothing, because equal seeds must give equal plans.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import TYPE_CHECKING

import torch

from rowmill.distributed.cost import Speeds
from rowmill.errors import InvalidInput
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD
from rowmill.store.store import open as open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from rowmill.distributed.ranks import Ranks

_MESSAGE_BYTES = 4 << 20
"""Bytes of a message to all other ranks together, as in steps that are bound by the link."""
_ROWS, _DIM, _BAGS, _IDS = 50_000, 64, 512, 20
"""Size of the table that is looked up, larger than caches, and of the bags."""
_ROUNDS = 9
"""Repetitions, of which the median counts."""


def probe(ranks: Ranks, *, threads: int = 1) -> Speeds:
    """Measure the link and a core of every rank, for some seconds; returns those of the slowest. A collective.

    Args:
        ranks: The participating ranks.
        threads: Threads of a store in training.

    Raises:
        InvalidInput: There is only one rank, which has no link.
    """
    if ranks.count == 1:
        raise InvalidInput(
            "the probe measures the link between ranks: start it on 2 ranks or more with torchrun"
        )
    link = _link(ranks)
    core = _core(ranks, threads)
    links, cores = zip(*ranks.gather((link, core)), strict=True)
    return Speeds(link_bytes_per_s=min(links), weight_bytes_per_s=min(cores))


def _link(ranks: Ranks) -> float:
    """Bytes per second that this rank sends while it receives as many."""
    sizes = [_MESSAGE_BYTES // 4 // (ranks.count - 1)] * ranks.count
    out = torch.zeros(sum(sizes))
    back = torch.empty_like(out)
    sent = out.nbytes * (ranks.count - 1) / ranks.count

    def send() -> None:
        call = ranks.whereabouts.begin("probe of the link")
        ranks.wait(ranks.all_to_all(back, out, sizes, sizes), call)

    return sent / _seconds(ranks, send)


def _core(ranks: Ranks, threads: int) -> float:
    """Bytes of weights per second that this rank reads and pools in training, as `Costs` counts them."""
    random = torch.Generator().manual_seed(ranks.rank)
    ids = torch.randint(_ROWS, (_BAGS, _IDS), generator=random)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder, memory="256MiB", threads=threads)
        table = store.table("probe", dim=_DIM, optimizer=SGD(lr=0.0), num_rows=_ROWS)
        bags = EmbeddingBag(_ROWS, _DIM, mode="sum", table=table)
        try:
            seconds = _seconds(ranks, lambda: bags(ids).sum().backward())
        finally:
            store.close()
    return 2 * 4 * _DIM * (ids.numel() + _BAGS) / seconds


def _seconds(ranks: Ranks, call: Callable[[], object]) -> float:
    """Median seconds of a call that all ranks make at the same time."""
    taken: list[float] = []
    for _ in range(1 + _ROUNDS):
        ranks.gather(None)
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    # The first call allocates and creates rows.
    return statistics.median(taken[1:])
