"""GraphSAGE and GAT against the formulas of their papers on dense matrices of the whole graph, forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.gnn import GAT, Block, GatLayer, GraphSAGE, NeighbourSampler, SageLayer, Sample

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, DIM, HIDDEN, CLASSES = 30, 7, 6, 4


@pytest.fixture(scope="module")
def adjacency() -> Tensor:
    """`[i, j]`: number of edges from i to its neighbour j. There are double edges, self-loops and two isolated nodes."""
    random = torch.Generator().manual_seed(2)
    counts = (torch.rand(NODES, NODES, generator=random) < 0.15).double()
    counts[4, 5] = 2.0
    counts[6, 6] = 1.0
    counts[[7, 8]] = 0.0
    return counts


@pytest.fixture(scope="module")
def sample(adjacency: Tensor) -> Sample:
    """A sample of two hops with all neighbours."""
    places = [np.repeat(np.arange(NODES), row.long().numpy()) for row in adjacency]
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in places])])
    sampler = NeighbourSampler(indptr, np.concatenate(places), fanouts=[-1, -1])
    return sampler.sample(torch.tensor([6, 7, 4, 20, 1]), batch=0)


def mean_of(adjacency: Tensor, vectors: Tensor) -> Tensor:
    return adjacency @ vectors / adjacency.sum(1, keepdim=True).clamp(min=1)


def dense_sage(model: GraphSAGE, adjacency: Tensor, vectors: Tensor) -> Tensor:
    for place, layer in enumerate(model.layers):
        assert isinstance(layer, SageLayer)
        made = vectors @ layer.own.weight.T + layer.own.bias
        made = made + mean_of(adjacency, vectors) @ layer.neighbours.weight.T
        if place < len(model.layers) - 1:
            norm = model.norms[place]
            if isinstance(norm, nn.LayerNorm):
                made = made - made.mean(1, keepdim=True)
                made = made / (made.square().mean(1, keepdim=True) + norm.eps).sqrt()
                made = made * norm.weight + norm.bias
            made = made.clamp(min=0)
            if model.residual and vectors.shape == made.shape:
                made = made + vectors
        vectors = made
    return vectors


def dense_gat(model: GAT, adjacency: Tensor, vectors: Tensor) -> Tensor:
    counts = adjacency + torch.eye(NODES, dtype=adjacency.dtype)
    for place, layer in enumerate(model.layers):
        assert isinstance(layer, GatLayer)
        heads: list[Tensor] = []
        mapped = (vectors @ layer.linear.weight.T).chunk(layer.heads, dim=1)
        for head, own in enumerate(mapped):
            scores = (own @ layer.of_target[head])[:, None] + (own @ layer.of_source[head])[None, :]
            powers = counts * torch.where(scores > 0, scores, 0.2 * scores).exp()
            heads.append(powers / powers.sum(1, keepdim=True) @ own)
        if place < len(model.layers) - 1:
            made = torch.cat(heads, dim=1) + model.biases[place]
            vectors = torch.where(made > 0, made, made.exp() - 1)
        else:
            vectors = sum(heads) / layer.heads + model.biases[place]
    return vectors


@pytest.mark.parametrize(
    ("make", "dense"),
    [
        (lambda: GraphSAGE(DIM, HIDDEN, CLASSES, layers=2), dense_sage),
        (lambda: GraphSAGE(DIM, HIDDEN, CLASSES, layers=2, norm=True), dense_sage),
        (lambda: GraphSAGE(DIM, DIM, CLASSES, layers=2, residual=True), dense_sage),
        (lambda: GAT(DIM, HIDDEN, CLASSES, layers=2, heads=3, last_heads=2), dense_gat),
        (lambda: GAT(DIM, HIDDEN, CLASSES, layers=2, heads=1), dense_gat),
    ],
)
def test_a_model_over_blocks_equals_its_formula_over_matrices(
    adjacency: Tensor,
    sample: Sample,
    make: Callable[[], GraphSAGE | GAT],
    dense: Callable[..., Tensor],
) -> None:
    torch.manual_seed(5)
    model = make().double()
    for bias in model.parameters():  # With a bias of 0, a missing bias would go unnoticed.
        nn.init.normal_(bias, std=0.5)
    all_vectors = torch.randn(NODES, DIM, dtype=torch.float64)
    results: list[list[Tensor]] = []
    for over_blocks in (True, False):
        vectors = all_vectors.clone().requires_grad_()
        if over_blocks:
            out = model(vectors[sample.nodes], sample.blocks)
        else:
            out = dense(model, adjacency, vectors)[sample.nodes[:5]]
        model.zero_grad()
        out.square().sum().backward()
        gradients = [parameter.grad for parameter in (vectors, *model.parameters())]
        results.append([out.detach(), *(grad.clone() for grad in gradients if grad is not None)])
    assert len(results[0]) == 2 + len(list(model.parameters()))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_large_score_does_not_overflow() -> None:
    layer = GatLayer(1, 1, 1)
    for weight in layer.parameters():
        nn.init.constant_(weight, 100.0)
    block = Block(torch.tensor([0, 1]), torch.tensor([1]), 2)
    assert layer(torch.tensor([[1.0], [1.0]]), block).item() == pytest.approx(100.0)


@pytest.mark.parametrize(
    "model",
    [
        GraphSAGE(DIM, HIDDEN, CLASSES, layers=2, feature_dropout=0.5),
        GraphSAGE(DIM, HIDDEN, CLASSES, layers=2, dropout=0.5),
        GAT(DIM, HIDDEN, CLASSES, layers=2, feature_dropout=0.5),
        GAT(DIM, HIDDEN, CLASSES, layers=2, dropout=0.5),
        GAT(DIM, HIDDEN, CLASSES, layers=2, attention_dropout=0.5),
    ],
)
def test_dropout_acts_only_in_training(model: nn.Module, sample: Sample) -> None:
    vectors = torch.randn(len(sample.nodes), DIM, generator=torch.Generator().manual_seed(1))
    one, other = (model(vectors, sample.blocks) for _ in range(2))
    assert not torch.equal(one, other)
    model.eval()
    one, other = (model(vectors, sample.blocks) for _ in range(2))
    assert torch.equal(one, other)
    model.train()


@pytest.mark.parametrize("model", [GraphSAGE(2, 3, 2, layers=1), GAT(2, 3, 2, layers=1)])
def test_a_sample_without_edges_works(model: nn.Module) -> None:
    block = Block(torch.zeros(4, dtype=torch.int64), torch.empty(0, dtype=torch.int64), 3)
    out = model(torch.ones(3, 2), (block,))
    assert out.shape == (3, 2)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("kind", [GraphSAGE, GAT])
def test_samples_that_do_not_fit_a_model_are_refused(kind: type[nn.Module], sample: Sample) -> None:
    vectors = torch.ones(len(sample.nodes), DIM)
    with pytest.raises(InvalidInput, match="a model of 3 layers needs 3 blocks, got 2"):
        kind(DIM, HIDDEN, CLASSES, layers=3)(vectors, sample.blocks)
    with pytest.raises(InvalidInput, match=f"7 vectors, but the sample has {len(sample.nodes)}"):
        kind(DIM, HIDDEN, CLASSES, layers=2)(vectors[:7], sample.blocks)
