"""Neighbour sampling: the nodes that a batch needs, and for each layer of a model the edges that it aggregates.

The sampling itself is a kernel (`crates/rowmill-kernels/src/neighbours.rs`), which runs without the interpreter's lock.

Shapes: N nodes of a sample, T targets of a block, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rowmill import _core
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

_FANOUT_MAX = 1 << 20
_WORD_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Block:
    """The neighbours that one layer combines; int64 tensors.

    Attributes:
        indptr: `[T + 1]`: the neighbours of target `t` are `indices[indptr[t]:indptr[t + 1]]`.
        indices: Places of the neighbours `[E]`, below `sources`.
        sources: So many nodes of the sample, the first ones, are read; of them the first T are the targets.
    """

    indptr: Tensor
    indices: Tensor
    sources: int

    @property
    def targets(self) -> int:
        """Nodes that get a vector, T."""
        return len(self.indptr) - 1

    @property
    def owners(self) -> Tensor:
        """The target of every edge, `[E]`."""
        return torch.repeat_interleave(torch.arange(self.targets), self.indptr.diff())


@dataclass(frozen=True)
class Sample:
    """Seeds, their neighbours, the neighbours of these, and so on.

    Attributes:
        nodes: Their numbers, int64 `[N]`, each once: the seeds, then what each layer adds.
        blocks: One for each layer, the seeds' first. A model computes them from the last to the first.
    """

    nodes: Tensor
    blocks: tuple[Block, ...]


class NeighbourSampler:
    """Draws neighbours in a graph of compressed rows, in memory or mapped from files (`numpy.memmap`).

    The neighbours of node `v` are `indices[indptr[v]:indptr[v + 1]]`. The arrays are used where they are; nothing is
    read of them but both ends of `indptr` and what samples need, and every entry is checked before it is used.

    Args:
        indptr: int64 `[nodes + 1]`, contiguous.
        indices: int32 or int64 `[edges]`, contiguous.
        fanouts: Neighbours to draw of a node in each layer, the seeds' first; -1: all of them.
        replace: Draw each neighbour from all of them, so that one may come twice. Otherwise every edge comes at most
            once, and all do where there are no more than the fan-out.
        seed: Equal seeds draw equal neighbours of a node in a batch of the same number, whatever the batch has beside.

    Examples:
        >>> import numpy as np
        >>> sampler = NeighbourSampler(np.array([0, 2, 3, 3]), np.array([1, 2, 0]), fanouts=[-1])
        >>> sample = sampler.sample(torch.tensor([2, 0]), batch=0)
        >>> sample.nodes, sample.blocks[0].indptr, sample.blocks[0].indices
        (tensor([2, 0, 1]), tensor([0, 0, 2]), tensor([2, 0]))
    """

    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[Any],
        *,
        fanouts: Sequence[int],
        replace: bool = False,
        seed: int = 0,
    ) -> None:
        for layer, fanout in enumerate(fanouts):
            if fanout != -1 and not 1 <= fanout <= _FANOUT_MAX:
                raise InvalidInput(
                    f"fanouts[{layer}] = {fanout}; it must be from 1 to {_FANOUT_MAX}, or -1 for all neighbours"
                )
        for name, array in (("indptr", indptr), ("indices", indices)):
            # Numbers with their bytes the other way round would be other numbers.
            if not getattr(getattr(array, "dtype", None), "isnative", True):
                raise InvalidInput(
                    f"{name} is {array.dtype}, in the byte order of another machine: convert it with astype"
                )
        if not 0 <= seed <= _WORD_MAX:
            raise InvalidInput(f"seed = {seed}; it must be from 0 to {_WORD_MAX}")
        self.indptr = indptr
        self.indices = indices
        self.fanouts = list(fanouts)
        self.replace = replace
        self.seed = seed
        self.sample(torch.empty(0, dtype=torch.int64), batch=0)  # Raises where arrays do not fit.

    def sample(self, seeds: Tensor, *, batch: int) -> Sample:
        """A sample of the neighbours of distinct nodes, int64 `[n]`; equal numbers of a batch draw equally."""
        if not 0 <= batch <= _WORD_MAX:
            raise InvalidInput(f"batch = {batch}; it must be from 0 to {_WORD_MAX}")
        nodes, layers = _core.sample_neighbours(
            self.indptr, self.indices, seeds.numpy(), self.fanouts, self.replace, self.seed, batch
        )
        blocks = [
            Block(_long(indptr), _long(indices), sources) for indptr, indices, sources in layers
        ]
        return Sample(_long(nodes), tuple(blocks))


def check_blocks(vectors: Tensor, blocks: Sequence[Block], *, layers: int) -> None:
    """Raise unless a model of so many layers can compute these blocks of these vectors."""
    if len(blocks) != layers:
        raise InvalidInput(
            f"a model of {layers} layers takes as many blocks, got {len(blocks)}: give its sampler a fan-out for each layer"
        )
    if len(vectors) != blocks[-1].sources:
        raise InvalidInput(
            f"{len(vectors)} vectors, but the sample has {blocks[-1].sources} nodes: give one for each, in their order"
        )


def _long(content: bytearray) -> Tensor:
    # A tensor cannot be made of no bytes.
    return (
        torch.frombuffer(content, dtype=torch.int64)
        if content
        else torch.empty(0, dtype=torch.int64)
    )
