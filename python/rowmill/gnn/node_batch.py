"""Batches of nodes with sampled neighbours, in an order determined by seed, epoch and position.

Threads draw samples while earlier batches are trained on. The samples depend only on the seed and the number of the
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
    """Some nodes, what is known of them, and the sample that a model needs.

    Attributes:
        sample: Neighbours, the batch's nodes being the seeds.
        labels: Their classes, int64 `[n]`.
        stop: The example of the epoch after the last one.
    """

    sample: Sample
    labels: Tensor
    stop: int

    @property
    def nodes(self) -> Tensor:
        """Nodes whose vectors are needed, distinct."""
        return self.sample.nodes

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Their neighbours, layer by layer."""
        return self.sample.blocks

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        links = sum(block.indptr.nbytes + block.indices.nbytes for block in self.blocks)
        return self.nodes.nbytes + links + self.labels.nbytes


class NodeBatches:
    """The batches of some nodes.

    Args:
        sampler: Draws neighbours.
        nodes: The nodes, int64.
        labels: The classes of all nodes of the graph, int64.
        batch: Nodes of a batch.
        seed: Of the order.
        threads: How many draw samples.
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
    ) -> None:
        self._sampler = sampler
        self._nodes = nodes
        self._labels = labels
        self._batch = batch
        self._seed = seed
        self._threads = threads

    def __len__(self) -> int:
        """Nodes of an epoch."""
        return len(self._nodes)

    def epoch(self, number: int, start: int = 0) -> Iterator[NodeBatch]:
        """The batches of an epoch, shuffled anew in each, from an example on: 0 or the `stop` of a batch."""
        order = np.random.default_rng([self._seed, number]).permutation(len(self._nodes))
        return self._batches(self._nodes[order], start, number * len(self._nodes))

    def in_order(self) -> Iterator[NodeBatch]:
        """The batches of all nodes as they were given, each time the same."""
        return self._batches(self._nodes, 0, 0)

    def _batches(self, nodes: NDArray[np.int64], start: int, before: int) -> Iterator[NodeBatch]:
        def draw(first: int) -> NodeBatch:
            stop = min(first + self._batch, len(nodes))
            chosen = nodes[first:stop]
            sample = self._sampler.sample(torch.from_numpy(chosen), batch=before + first)
            return NodeBatch(sample, torch.from_numpy(self._labels[chosen]), stop)

        firsts = range(start, len(nodes), self._batch)
        return _in_threads(draw, firsts, self._threads)


def _in_threads(
    work: Callable[[int], Result], items: Iterable[int], threads: int
) -> Iterator[Result]:
    """Results in the order of the items; each thread is one item ahead of what was asked for."""
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
