"""Neighbour sampling: the nodes that a batch needs, and for each layer of a model the edges that the layer aggregates.

The sampling runs in Rust (`crates/rowmill-kernels/src/neighbours.rs`) with the GIL released.

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
    """The edges that one layer aggregates; int64 tensors.

    Attributes:
        indptr: `[T + 1]`: the neighbours of target `t` are `indices[indptr[t]:indptr[t + 1]]`.
        indices: `[E]`, the neighbours as positions in `Sample.nodes`, in [0, `sources`).
        sources: Number of input nodes: the layer reads the first `sources` nodes of the sample. The first T of them are
            the targets.
    """

    indptr: Tensor
    indices: Tensor
    sources: int

    @property
    def targets(self) -> int:
        """Number of nodes for which the layer computes a vector, T."""
        return len(self.indptr) - 1

    @property
    def owners(self) -> Tensor:
        """The target of every edge, `[E]`, ascending."""
        return torch.repeat_interleave(torch.arange(self.targets), self.indptr.diff())


@dataclass(frozen=True)
class Sample:
    """A sampled neighbourhood of seed nodes, with as many hops as layers.

    Attributes:
        nodes: Distinct node numbers, int64 `[N]`: the seeds, then the nodes that each hop adds.
        blocks: One block per hop, the seeds' first. A model processes them in reverse order.
    """

    nodes: Tensor
    blocks: tuple[Block, ...]


class NeighbourSampler:
    """Samples neighbours in a graph in CSR form, in memory or memory-mapped (`numpy.memmap`).

    The neighbours of node `v` are `indices[indptr[v]:indptr[v + 1]]`. The arrays are not copied. The constructor reads
    only both ends of `indptr`; samples read the entries they need and check each before use.

    Args:
        indptr: int64 `[nodes + 1]`, contiguous.
        indices: int32 or int64 `[edges]`, contiguous.
        fanouts: Neighbours to sample per node in each hop, the seeds' hop first; -1: all neighbours.
        replace: Sample with replacement. Otherwise an edge is drawn at most once, and a node with no more neighbours than
            the fan-out gets all of them.
        seed: The neighbours drawn for a node depend only on the seed, the number of the batch and the node, not on the
            other nodes of the batch.

    Raises:
        InvalidInput: An array has the wrong dtype, shape or content, or a fan-out is out of range.

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
                    f"fanouts[{layer}] must be in [1, {_FANOUT_MAX}], or -1 for all neighbours; got {fanout}"
                )
        for name, array in (("indptr", indptr), ("indices", indices)):
            # The kernel reads native byte order; swapped bytes would be read as other numbers.
            if not getattr(getattr(array, "dtype", None), "isnative", True):
                raise InvalidInput(
                    f"{name} is {array.dtype}, which is not in native byte order: convert it with {name}.astype(dtype.newbyteorder('='))"
                )
        if not 0 <= seed <= _WORD_MAX:
            raise InvalidInput(f"seed must be in [0, 2**64), got {seed}")
        self.indptr = indptr
        self.indices = indices
        self.fanouts = list(fanouts)
        self.replace = replace
        self.seed = seed
        self.sample(torch.empty(0, dtype=torch.int64), batch=0)  # Raises if an array is not valid.

    def sample(self, seeds: Tensor, *, batch: int) -> Sample:
        """Sample the neighbourhood of distinct seed nodes, int64 `[n]`.

        Calls with the same seeds and `batch`, the number of the batch, return the same sample.
        """
        if not 0 <= batch <= _WORD_MAX:
            raise InvalidInput(f"batch must be in [0, 2**64), got {batch}")
        nodes, layers = _core.sample_neighbours(
            self.indptr, self.indices, seeds.numpy(), self.fanouts, self.replace, self.seed, batch
        )
        blocks = [
            Block(_long(indptr), _long(indices), sources) for indptr, indices, sources in layers
        ]
        return Sample(_long(nodes), tuple(blocks))


def check_blocks(vectors: Tensor, blocks: Sequence[Block], *, layers: int) -> None:
    """Raise `InvalidInput` unless there is one block per layer, and one vector per node of the sample."""
    if len(blocks) != layers:
        raise InvalidInput(
            f"a model of {layers} layers needs {layers} blocks, got {len(blocks)}: give the sampler one fan-out per layer"
        )
    if len(vectors) != blocks[-1].sources:
        raise InvalidInput(
            f"{len(vectors)} vectors, but the sample has {blocks[-1].sources} nodes: give one vector per node, in the order of sample.nodes"
        )


def _long(content: bytearray) -> Tensor:
    # torch.frombuffer rejects an empty buffer.
    return (
        torch.frombuffer(content, dtype=torch.int64)
        if content
        else torch.empty(0, dtype=torch.int64)
    )
