"""Graph attention networks (Velickovic et al. 2018, arXiv 1710.10903).

Shapes: S sources, T targets, E edges of which T lead from a target to itself, H heads, W width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, embedding_bag, leaky_relu

from rowmill.gnn.sampler import check_blocks
from rowmill.nn.dropout import dropout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.gnn.sampler import Block

_SLOPE = 0.2
"""Of the rectifier of attention, as in the paper."""


class GatLayer(nn.Module):
    """Every target attends to its neighbours and to itself, with several heads: `[S, D]` in, `[T, H, W]` out.

    An edge counts as often as it is drawn; an edge of the graph from a node to itself counts beside the one that is
    always there.
    """

    def __init__(self, dim: int, width: int, heads: int, *, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.linear = nn.Linear(dim, heads * width, bias=False)
        self.of_source = nn.Parameter(torch.empty(heads, width))
        self.of_target = nn.Parameter(torch.empty(heads, width))
        for weight in (self.linear.weight, self.of_source, self.of_target):
            nn.init.xavier_uniform_(weight)

    def forward(self, vectors: Tensor, block: Block) -> Tensor:
        """New vectors of the targets, head by head."""
        mapped = self.linear(vectors).unflatten(1, (self.heads, -1))
        indptr, indices, owners = _with_themselves(block)
        from_source = (mapped * self.of_source).sum(-1)
        to_target = (mapped[: block.targets] * self.of_target).sum(-1)
        scores = leaky_relu(from_source[indices] + to_target[owners], _SLOPE)
        shares = dropout(
            _softmax(scores, owners, block.targets), self.attention_dropout, training=self.training
        )
        return _weighted_sums(mapped, indptr, indices, shares)


class GAT(nn.Module):
    """Layers of attention; heads are strung together, and averaged in the last layer.

    Args:
        dim: D of the vectors of nodes.
        hidden: Width of a head between layers.
        classes: Width of what comes out.
        layers: How many there are, one for each block.
        heads: Heads of every layer but the last.
        last_heads: Heads of the last layer.
        feature_dropout: Share of the input left out in training.
        dropout: Share of the hidden vectors left out in training.
        attention_dropout: Share of the edges that a head leaves out in training.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        classes: int,
        *,
        layers: int,
        heads: int = 8,
        last_heads: int = 1,
        feature_dropout: float = 0.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        dims = [dim, *[hidden * heads] * (layers - 1)]
        widths = [hidden] * (layers - 1) + [classes]
        counts = [heads] * (layers - 1) + [last_heads]
        self.layers = nn.ModuleList(
            GatLayer(given, width, count, attention_dropout=attention_dropout)
            for given, width, count in zip(dims, widths, counts, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(width) for width in [*dims[1:], classes])
        self.feature_dropout = feature_dropout
        self.dropout = dropout

    def forward(self, vectors: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Vectors of a sample's nodes `[N, D]` and its blocks in, `[seeds, classes]` out."""
        check_blocks(vectors, blocks, layers=len(self.layers))
        vectors = dropout(vectors, self.feature_dropout, training=self.training)
        *hidden, last = self.layers
        for layer, bias, block in zip(hidden, self.biases, reversed(blocks), strict=False):
            made = elu(layer(vectors, block).flatten(1) + bias)
            vectors = dropout(made, self.dropout, training=self.training)
        return last(vectors, blocks[0]).mean(1) + self.biases[-1]


def _with_themselves(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Lists, places and owners of a block whose targets are neighbours of themselves, behind the others."""
    targets = torch.arange(block.targets)
    indptr = block.indptr.clone()
    indptr[1:] += targets + 1
    edges = torch.arange(len(block.indices)) + block.owners
    indices = torch.empty(len(block.indices) + block.targets, dtype=torch.int64)
    indices[edges] = block.indices
    indices[indptr[1:] - 1] = targets
    return indptr, indices, torch.repeat_interleave(targets, indptr.diff())


def _softmax(scores: Tensor, owners: Tensor, targets: int) -> Tensor:
    """Shares of the edges `[E, H]` of each target, which add up to 1."""
    with torch.no_grad():
        # Taking off the largest score changes no share and lets none overflow.
        places = owners[:, None].expand_as(scores)
        largest = scores.new_full((targets, scores.shape[1]), -torch.inf)
        largest = largest.scatter_reduce(0, places, scores, "amax")
    powers = (scores - largest[owners]).exp()
    sums = powers.new_zeros(largest.shape).index_add(0, owners, powers)
    return powers / sums[owners]


def _weighted_sums(vectors: Tensor, indptr: Tensor, indices: Tensor, shares: Tensor) -> Tensor:
    """Sums of the vectors `[S, H, W]` of every list, by shares `[E, H]`: `[T, H, W]`.

    The bags of one head follow those of another, so that none of it needs a vector for every edge.
    """
    _, heads, width = vectors.shape
    head = torch.arange(heads)[:, None]
    summed = embedding_bag(
        (indices * heads + head).flatten(),
        vectors.flatten(0, 1),
        (indptr[:-1] + head * len(indices)).flatten(),
        mode="sum",
        per_sample_weights=shares.T.flatten(),
    )
    return summed.view(heads, len(indptr) - 1, width).transpose(0, 1)
