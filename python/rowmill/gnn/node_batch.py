"""Batches of nodes with sampled neighbours, in an order determined by seed, epoch and position.

Threads sample neighbours for later batches during training. Samples depend only on the seed and the number of the
batch, not on the number of threads.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill.gnn.sampler import Block, NeighbourSampler, Sample

Result = TypeVar("Result")


@dataclass(frozen=True)
class NodeBatch:
    """A batch of labelled nodes and their sampled neighbourhood.

    Attributes:
        sample: The neighbourhood; the nodes of the batch are its seeds.
        labels: The classes of the nodes, int64 `[n]`.
        stop: Number of the epoch's next example after this batch.
        examples: Number of nodes in the batch, of all ranks.
        share: The part of them that these nodes are. 0 on a rank without nodes of the batch: then its first node stands in,
            without weight.
    """

    sample: Sample
    labels: Tensor
    stop: int
    examples: int
    share: float = 1.0

    @property
    def nodes(self) -> Tensor:
        """Distinct nodes whose vectors are needed, int64 `[N]`."""
        return self.sample.nodes

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The sampled edges, one block per layer."""
        return self.sample.blocks

    def __len__(self) -> int:
        return len(self.labels) if self.share else 0

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        links = sum(block.indptr.nbytes + block.indices.nbytes for block in self.blocks)
        return self.nodes.nbytes + links + self.labels.nbytes


class NodeBatches:
    """Batches of nodes with sampled neighbours.

    Args:
        sampler: Samples the neighbours.
        nodes: The nodes to split into batches, int64 `[n]`.
        labels: The classes of all nodes of the graph, int64 `[nodes]`.
        batch: Nodes per batch.
        seed: Seed of the order of nodes.
        threads: Number of threads that sample.
        rank: With `ranks`, the rank whose part of every batch is wanted. It has the neighbours that the whole batch has.
        ranks: Number of ranks; None: whole batches.
    """

    def __init__(
        self,
        sampler: NeighbourSampler,
        nodes: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        batch: int,
        seed: int = 0,
        threads: int = 1,
        rank: int = 0,
        ranks: int | None = None,
    ) -> None:
        self._rank, self._ranks = rank, ranks
        self._sampler = sampler
        self._nodes = nodes
        self._labels = labels
        self._batch = batch
        self._seed = seed
        self._threads = threads

    def __len__(self) -> int:
        """Number of nodes per epoch."""
        return len(self._nodes)

    def epoch(self, number: int, start: int = 0) -> Iterator[NodeBatch]:
        """The batches of an epoch in random order, starting at example `start`: 0, or the `stop` of a batch."""
        order = np.random.default_rng([self._seed, number]).permutation(len(self._nodes))
        return self._batches(self._nodes[order], start, number * len(self._nodes))

    def in_order(self) -> Iterator[NodeBatch]:
        """The batches of all nodes in the given order; the same on each call."""
        return self._batches(self._nodes, 0, 0)

    def _batches(self, nodes: NDArray[np.int64], start: int, before: int) -> Iterator[NodeBatch]:
        def draw(first: int) -> NodeBatch:
            stop = min(first + self._batch, len(nodes))
            whole = nodes[first:stop]
            own, share = self._own(len(whole))
            chosen = whole[own]
            sample = self._sampler.sample(torch.from_numpy(chosen), batch=before + first)
            labels = torch.from_numpy(self._labels[chosen])
            return NodeBatch(sample, labels, stop, len(whole), share)

        firsts = range(start, len(nodes), self._batch)
        return _in_threads(draw, firsts, self._threads)

    def _own(self, examples: int) -> tuple[slice, float]:
        """The nodes of a batch that this rank has, and their share; at least one node."""
        if self._ranks is None:
            return slice(None), 1.0
        begin = examples * self._rank // self._ranks
        end = examples * (self._rank + 1) // self._ranks
        return (slice(begin, end) if begin < end else slice(0, 1)), (end - begin) / examples


def _in_threads(
    work: Callable[[int], Result], items: Iterable[int], threads: int
) -> Iterator[Result]:
    """Yield the results in the order of the items; up to `threads` results are computed ahead of the consumer."""
    waiting: deque[Callable[[], Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="rowmill-sample")
    try:
        for item in items:
            waiting.append(pool.submit(work, item).result)
            if len(waiting) > threads:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()
    finally:
        pool.shutdown()
