"""GraphSAGE with the mean of neighbours (Hamilton et al. 2017, arXiv 1706.02216)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn.functional import embedding_bag, relu

from rowmill.gnn.sampler import check_blocks
from rowmill.nn.dropout import dropout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.gnn.sampler import Block


class SageLayer(nn.Module):
    """`W own + V mean of the neighbours + b`: `[sources, D]` in, `[targets, width]` out.

    The mean over no neighbours is 0.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(dim, width)
        self.neighbours = nn.Linear(dim, width, bias=False)

    def forward(self, vectors: Tensor, block: Block) -> Tensor:
        """New vectors of the targets."""
        # A bag is gathered and averaged in one pass, without a vector for every edge.
        mean = embedding_bag(
            block.indices, vectors, block.indptr, mode="mean", include_last_offset=True
        )
        return self.own(vectors[: block.targets]) + self.neighbours(mean)


class GraphSAGE(nn.Module):
    """Layers of means, with rectifiers between them.

    Args:
        dim: D of the vectors of nodes.
        hidden: Width between layers.
        classes: Width of what comes out.
        layers: How many there are, one for each block.
        feature_dropout: Share of the input left out in training.
        dropout: Share of the hidden vectors left out in training.
        norm: Normalise hidden vectors (layer normalisation).
        residual: Add to each hidden layer what it was given of its targets.
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

    def forward(self, vectors: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Vectors of a sample's nodes `[N, D]` and its blocks in, `[seeds, classes]` out."""
        check_blocks(vectors, blocks, layers=len(self.layers))
        vectors = dropout(vectors, self.feature_dropout, training=self.training)
        *hidden, last = self.layers
        for layer, norm, block in zip(hidden, self.norms, reversed(blocks), strict=False):
            made = relu(norm(layer(vectors, block)))
            if self.residual and vectors.shape[1] == made.shape[1]:
                made = made + vectors[: block.targets]
            vectors = dropout(made, self.dropout, training=self.training)
        return last(vectors, blocks[0])
