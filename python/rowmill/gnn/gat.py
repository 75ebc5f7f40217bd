"""Graph attention networks (Velickovic et al. 2018, arXiv 1710.10903).

Shapes: S sources, T targets, E edges (including a self-loop per target), H heads, W width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, embedding_bag, leaky_relu

from rowmill.gnn.node_dropout import node_dropout
from rowmill.gnn.sampler import check_blocks
from rowmill.nn.dropout import named_dropout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.gnn.sampler import Block

_SLOPE = 0.2
"""Negative slope of the LeakyReLU in attention, as in the paper."""
_PLACE_BITS = 24
"""Names of edges repeat if a target has more edges than this many bits count; they then share random bits."""


class GatLayer(nn.Module):
    """A layer in which every target attends to its neighbours and itself, with several heads: `[S, D]` to `[T, H, W]`.

    An edge that is drawn several times counts several times. A self-loop of the graph counts in addition to the self-loop
    that the layer adds to every target.
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

    def forward(self, vectors: Tensor, block: Block, nodes: Tensor | None = None) -> Tensor:
        """Vectors of the targets per head, `[T, H, W]`. `nodes`: as for `GAT`."""
        mapped = self.linear(vectors).unflatten(1, (self.heads, -1))
        indptr, indices, owners = _with_themselves(block)
        from_source = (mapped * self.of_source).sum(-1)
        to_target = (mapped[: block.targets] * self.of_target).sum(-1)
        scores = leaky_relu(from_source[indices] + to_target[owners], _SLOPE)
        shares = _softmax(scores, owners, block.targets)
        names = None
        if nodes is not None:
            # An edge is named by its target and its place in the target's list, which are those of the whole batch.
            places = torch.arange(len(owners)) - indptr[owners]
            names = (nodes[owners] << _PLACE_BITS) + places
        shares = named_dropout(shares, self.attention_dropout, names, training=self.training)
        return _weighted_sums(mapped, indptr, indices, shares)


class GAT(nn.Module):
    """GAT layers with ELU between them. Heads are concatenated, and averaged in the last layer.

    Args:
        dim: Width of the input vectors, D.
        hidden: Width of a head in hidden layers.
        classes: Width of the output.
        layers: Number of layers; the same as the number of blocks.
        heads: Number of heads in every layer but the last.
        last_heads: Number of heads in the last layer.
        feature_dropout: Dropout rate of the input vectors.
        dropout: Dropout rate of the hidden vectors.
        attention_dropout: Dropout rate of the attention weights.
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

    def forward(
        self, vectors: Tensor, blocks: Sequence[Block], nodes: Tensor | None = None
    ) -> Tensor:
        """Class scores of the seeds, `[seeds, classes]`.

        Args:
            vectors: The vectors of the sample's nodes, `[N, D]`.
            blocks: The blocks of the sample.
            nodes: The nodes of the sample, `[N]`. With them, dropout of a vector or an edge depends on its nodes, and not on
                the sample, so that ranks with parts of a batch drop what one rank would.
        """
        check_blocks(vectors, blocks, layers=len(self.layers))
        vectors = node_dropout(vectors, self.feature_dropout, nodes, training=self.training)
        *hidden, last = self.layers
        for layer, bias, block in zip(hidden, self.biases, reversed(blocks), strict=False):
            made = elu(layer(vectors, block, nodes).flatten(1) + bias)
            vectors = node_dropout(made, self.dropout, nodes, training=self.training)
        return last(vectors, blocks[0], nodes).mean(1) + self.biases[-1]


def _with_themselves(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """`indptr`, `indices` and `owners` of a block with a self-loop added at the end of every target's list."""
    targets = torch.arange(block.targets)
    indptr = block.indptr.clone()
    indptr[1:] += targets + 1
    edges = torch.arange(len(block.indices)) + block.owners
    indices = torch.empty(len(block.indices) + block.targets, dtype=torch.int64)
    indices[edges] = block.indices
    indices[indptr[1:] - 1] = targets
    return indptr, indices, torch.repeat_interleave(targets, indptr.diff())


def _softmax(scores: Tensor, owners: Tensor, targets: int) -> Tensor:
    """Attention weights `[E, H]`: the softmax of the scores over the edges of each target."""
    with torch.no_grad():
        # Subtracting the largest score does not change the softmax and prevents overflow.
        places = owners[:, None].expand_as(scores)
        largest = scores.new_full((targets, scores.shape[1]), -torch.inf)
        largest = largest.scatter_reduce(0, places, scores, "amax")
    powers = (scores - largest[owners]).exp()
    sums = powers.new_zeros(largest.shape).index_add(0, owners, powers)
    return powers / sums[owners]


def _weighted_sums(vectors: Tensor, indptr: Tensor, indices: Tensor, shares: Tensor) -> Tensor:
    """Sums `[T, H, W]` of the neighbours' vectors `[S, H, W]`, weighted by `shares` `[E, H]`.

    All heads are bags of a single `embedding_bag`, so no vector per edge is materialised.
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
