"""GraphSAGE with mean aggregation (Hamilton et al. 2017, arXiv 1706.02216)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import embedding_bag, relu

from rowmill.gnn.node_dropout import node_dropout
from rowmill.gnn.sampler import check_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.gnn.sampler import Block


class SageLayer(nn.Module):
    """One layer: `W own + V mean(neighbours) + b`, from `[sources, D]` to `[targets, width]`.

    The mean of no neighbours is 0.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(dim, width)
        self.neighbours = nn.Linear(dim, width, bias=False)

    def forward(self, vectors: Tensor, block: Block) -> Tensor:
        """Vectors of the targets, `[targets, width]`."""
        # embedding_bag gathers and averages in one pass, without materialising a vector per edge.
        mean = embedding_bag(
            block.indices, vectors, block.indptr, mode="mean", include_last_offset=True
        )
        return self.own(vectors[: block.targets]) + self.neighbours(mean)


class GraphSAGE(nn.Module):
    """GraphSAGE layers with ReLU between them.

    Args:
        dim: Width of the input vectors, D.
        hidden: Width of the hidden vectors.
        classes: Width of the output.
        layers: Number of layers; the same as the number of blocks.
        feature_dropout: Dropout rate of the input vectors.
        dropout: Dropout rate of the hidden vectors.
        norm: Apply layer normalisation to hidden vectors.
        residual: Residual connections: add a hidden layer's input to its output where the widths are equal.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        classes: int,
        *,
        layers: int,
        feature_dropout: float = 0.0,
        dropout: float = 0.0,
        norm: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        widths = [dim, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(SageLayer(given, made) for given, made in pairwise(widths))
        self.norms = nn.ModuleList(
            nn.LayerNorm(hidden) if norm else nn.Identity() for _ in range(layers - 1)
        )
        self.feature_dropout = feature_dropout
        self.dropout = dropout
        self.residual = residual

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
        for layer, norm, block in zip(hidden, self.norms, reversed(blocks), strict=False):
            made = relu(norm(layer(vectors, block)))
            if self.residual and vectors.shape[1] == made.shape[1]:
                made = made + vectors[: block.targets]
            vectors = node_dropout(made, self.dropout, nodes, training=self.training)
        return last(vectors, blocks[0])
