"""The models against their published formulas, computed triple by triple, and pair scores against matrix scores.

A wrong sign in a conjugate or swapped halves of a row would still train, only worse; these tests find such errors.
"""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.kge import MODELS, ComplEx, DistMult, RotatE, TransE, TripleModel

N, R, D, B = 9, 3, 6, 5


def make(kind: type[TripleModel], **options: float) -> TripleModel:
    torch.manual_seed(1)
    relations = nn.Embedding(R, kind.relation_dim(D))
    return kind(nn.Embedding(N, D), relations, **options)  # pyright: ignore[reportArgumentType]


def triples() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randint(N, (B,)), torch.randint(R, (B,)), torch.randint(N, (B,))


def rows(model: TripleModel, *triple: Tensor) -> tuple[list[float], list[float], list[float]]:
    head, relation, tail = triple
    return (
        model.entities(head).tolist(),
        model.relations(relation).tolist(),
        model.entities(tail).tolist(),
    )


def numbers(row: list[float]) -> list[complex]:
    half = len(row) // 2
    return [complex(re, im) for re, im in zip(row[:half], row[half:], strict=True)]


def distmult(h: list[float], r: list[float], t: list[float]) -> float:
    return sum(a * b * c for a, b, c in zip(h, r, t, strict=True))


def complex_score(h: list[float], r: list[float], t: list[float]) -> float:
    return sum(
        (a * b * c.conjugate()).real
        for a, b, c in zip(numbers(h), numbers(r), numbers(t), strict=True)
    )


def transe(h: list[float], r: list[float], t: list[float]) -> float:
    return 4.0 - sum((a + b - c) ** 2 for a, b, c in zip(h, r, t, strict=True)) ** 0.5


def rotate(h: list[float], r: list[float], t: list[float]) -> float:
    return 4.0 - sum(
        abs(a * cmath.exp(1j * angle) - c)
        for a, angle, c in zip(numbers(h), r, numbers(t), strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "options", "formula"),
    [
        (DistMult, {}, distmult),
        (ComplEx, {}, complex_score),
        (TransE, {"margin": 4.0, "norm": 2}, transe),
        (RotatE, {"margin": 4.0}, rotate),
    ],
)
def test_scores_equal_the_published_formula(kind, options, formula) -> None:
    model = make(kind, **options)
    heads, relations, tails = triples()
    expected = [
        formula(*rows(model, *triple)) for triple in zip(heads, relations, tails, strict=True)
    ]
    torch.testing.assert_close(model(heads, relations, tails), torch.tensor(expected))


@pytest.mark.parametrize("kind", MODELS.values())
@pytest.mark.parametrize("norm", [1, 2])
def test_head_queries_tail_queries_pairs_and_matrices_agree(
    kind: type[TripleModel], norm: int
) -> None:
    """The same scores by tail query, by head query, in pairs, all against all, and with or without gradients."""
    model = make(kind, margin=1.5, norm=norm)
    heads, relations, tails = triples()
    expected = model(heads, relations, tails)
    h, r, t = model.entities(heads), model.relations(relations), model.entities(tails)
    torch.testing.assert_close(model.pair_scores(model.head_query(t, r), h), expected)
    for query, answers in ((model.tail_query(h, r), tails), (model.head_query(t, r), heads)):
        every = model.entities(torch.arange(N))
        scores = model.scores(query, every)
        torch.testing.assert_close(scores[torch.arange(B), answers], expected)
        with torch.no_grad():
            torch.testing.assert_close(model.scores(query, every), scores)


@pytest.mark.parametrize("kind", MODELS.values())
def test_a_distance_of_zero_has_a_gradient(kind: type[TripleModel]) -> None:
    model = make(kind)
    nn.init.zeros_(model.entities.weight)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(model.relations.weight)  # pyright: ignore[reportArgumentType]
    model(*triples()).sum().backward()
    for weight in model.parameters():
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all())


def test_magnitudes_are_moduli_where_rows_are_complex() -> None:
    row = torch.tensor([[3.0, -1.0, 4.0, 0.0]])
    assert make(ComplEx).magnitudes(row).tolist() == [[5.0, 1.0]]
    assert make(DistMult).magnitudes(row).tolist() == [[3.0, 1.0, 4.0, 0.0]]


@pytest.mark.parametrize("kind", [ComplEx, RotatE])
def test_complex_rows_have_an_even_dim(kind: type[TripleModel]) -> None:
    with pytest.raises(InvalidInput, match="dim must be even, got 7"):
        kind.relation_dim(7)


@pytest.mark.parametrize(("kind", "dim"), [(DistMult, 1), (ComplEx, 2), (TransE, 6), (RotatE, 4)])
def test_dims_of_entities_and_relations_must_match(kind: type[TripleModel], dim: int) -> None:
    with pytest.raises(InvalidInput, match=rf"entities of dim 4 needs relations .* got {dim}"):
        kind(nn.Embedding(5, 4), nn.Embedding(2, dim))
