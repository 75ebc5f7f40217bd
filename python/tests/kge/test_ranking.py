"""Ranks against the definition: score every possible triple, sort, exclude known answers, count half of each tie.

Weights are small integers, so scores are exact and there are many true ties. A store with memory for a tenth of the rows
must give the same ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import rowmill
from rowmill.errors import InvalidInput
from rowmill.kge import (
    MODELS,
    ComplEx,
    DistMult,
    KnownTriples,
    RotatE,
    TripleModel,
    rank,
    ranking,
)
from rowmill.nn import Embedding

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

N, R, D = 23, 3, 4


def triples(count: int, seed: int) -> NDArray[np.int64]:
    random = np.random.default_rng(seed)
    return np.stack([random.integers(size, size=count) for size in (N, R, N)], axis=1)


def model(kind: type[TripleModel], relations: int = R) -> TripleModel:
    torch.manual_seed(1)
    made = kind(nn.Embedding(N, D), nn.Embedding(relations, kind.relation_dim(D)))
    for weight in made.parameters():
        weight.data = torch.randint(-1, 2, weight.shape).float()
    return made


def by_definition(
    made: TripleModel, asked: NDArray[np.int64], known: set[tuple[int, ...]]
) -> list[list[float]]:
    """Ranks of the heads, then of the tails."""
    found: list[list[float]] = []
    for column in (0, 2):
        ranks: list[float] = []
        for triple in asked.tolist():
            others = [[*triple[:column], entity, *triple[column + 1 :]] for entity in range(N)]
            scores = made(*torch.tensor(others).T).tolist()
            own = scores[triple[column]]
            rivals = [
                score
                for other, score in zip(others, scores, strict=True)
                if tuple(other) not in known or other == triple
            ]
            best = 1 + sum(score > own for score in rivals)
            worst = sum(score >= own for score in rivals)
            ranks.append((best + worst) / 2)
        found.append(ranks)
    return found


@pytest.mark.parametrize("kind", MODELS.values())
@pytest.mark.parametrize(("chunk", "block"), [(4096, 512), (7, 5), (5, 100), (1, 1)])
def test_ranks_equal_the_definition(kind: type[TripleModel], chunk: int, block: int) -> None:
    train, asked = triples(150, 1), triples(40, 2)
    made = model(kind)
    known = {tuple(triple) for triple in np.concatenate([train, asked]).tolist()}
    expected = by_definition(made, asked, known)
    ranks = rank(made, asked, KnownTriples([train, asked]), entities=N, chunk=chunk, block=block)
    if kind is not RotatE:
        np.testing.assert_array_equal([ranks.heads, ranks.tails], expected)
        assert any(value % 1 for value in ranks.tails), "there must be ties"
    else:  # Sines and roots are rounded, so a tie of the definition need not be a tie of the ranker.
        assert np.abs(np.array([ranks.heads, ranks.tails]) - expected).max() <= 2.5


def test_answers_of_the_asked_queries_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known triples are filtered in pieces of seven; answers to other queries are not kept."""
    monkeypatch.setattr(ranking, "_PIECE_TRIPLES", 7)
    train, asked = triples(150, 1), triples(40, 2)
    asked[0] = [N - 1, R - 1, 0]  # Larger than every key of the training triples.
    made = model(DistMult)
    everything = KnownTriples([train, asked])
    needed = KnownTriples([train, asked], asked=[asked[:25], asked[25:]])
    found, expected = (rank(made, asked, known, entities=N) for known in (needed, everything))
    np.testing.assert_array_equal([found.heads, found.tails], [expected.heads, expected.tails])
    others = {(head, relation) for head, relation, _ in train.tolist()}
    others -= {(head, relation) for head, relation, _ in asked.tolist()}
    heads, relations = np.array(sorted(others)).T
    assert len(everything.tails(heads, relations)[0]) >= len(others) > 10
    assert len(needed.tails(heads, relations)[0]) == 0


def test_head_queries_may_use_reciprocal_relations() -> None:
    asked = triples(30, 4)
    made = model(ComplEx, relations=2 * R)
    ranks = rank(made, asked, KnownTriples([asked]), entities=N, reciprocal=R, chunk=6)
    turned = asked[:, [2, 1, 0]] + [0, R, 0]
    other = rank(made, turned, KnownTriples([turned]), entities=N, chunk=6)
    np.testing.assert_array_equal(ranks.heads, other.tails)


def test_a_model_with_constant_scores_gets_the_mean_rank() -> None:
    made = model(DistMult)
    for weight in made.parameters():
        weight.data.fill_(0.3)
    asked = np.array([[0, 0, 1], [4, 1, 22]])
    ranks = rank(made, asked, KnownTriples([asked]), entities=N, chunk=6, block=4)
    assert ranks.heads.tolist() == ranks.tails.tolist() == [(N + 1) / 2] * 2
    assert ranks.figures()["mrr"] == pytest.approx(2 / (N + 1))


def test_metrics_average_over_heads_and_tails() -> None:
    figures = ranking.AnswerRanks(heads=np.array([1.0, 4.0]), tails=np.array([2.5, 20.0])).figures()
    assert figures["mrr"] == pytest.approx((1 + 1 / 4 + 1 / 2.5 + 1 / 20) / 4)
    assert [figures[f"hits@{k}"] for k in (1, 3, 10)] == [0.25, 0.5, 0.75]
    assert figures["mrr_heads"] == pytest.approx(0.625)
    assert figures["mrr_tails"] == pytest.approx(0.225)


def test_metrics_without_triples_are_none() -> None:
    none = np.empty((0, 3), np.int64)
    figures = rank(model(DistMult), none, KnownTriples([]), entities=N).figures()
    assert set(figures.values()) == {None}


def test_an_unknown_relation_excludes_no_candidate() -> None:
    known = np.array([[1, 0, 4], [1, 0, 5]])
    queries, _ = KnownTriples([known]).tails(np.array([0, 1]), np.array([1, 0]))
    assert queries.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("asked", "options", "message"),
    [
        ([[0, 0, 1], [2, 0, N]], {}, rf"triples\[1\] has tail {N}, but entities = {N}"),
        ([[-1, 0, 1]], {}, r"triples\[0\] has head -1, but"),
        ([[3, 0, 1]], {"entities": 2}, r"triples\[0\] has head 3, but entities = 2"),
        ([[0, 1]], {}, r"must be integers of shape \[n, 3\]: .* got int64 \[1, 2\]"),
        ([[0.0, 1.0, 1.0]], {}, r"got float64 \[1, 3\]"),
        ([[0, 0, 1]], {"chunk": 0}, "chunk and block must be at least 1, got chunk = 0"),
    ],
)
def test_triples_that_cannot_be_ranked_are_named(
    asked: list[list[float]], options: dict[str, int], message: str
) -> None:
    known = KnownTriples([triples(5, 1)])
    with pytest.raises(InvalidInput, match=message):
        rank(model(DistMult), np.array(asked), known, **{"entities": N, **options})


def test_nan_rows_are_an_error_for_the_answer_and_count_as_better_otherwise() -> None:
    made = model(DistMult)
    made.entities.weight.data[3] = torch.nan  # pyright: ignore
    with pytest.raises(InvalidInput, match="NaN or infinite"):
        rank(made, np.array([[3, 0, 1]]), KnownTriples([triples(5, 1)]), entities=N)
    # The NaN is in the row of another entity, which counts as better than the answer.
    ranks = rank(made, np.array([[0, 0, 1]]), KnownTriples([np.array([[0, 0, 1]])]), entities=N)
    made.entities.weight.data[3] = 1e9  # pyright: ignore
    assert ranks.tails[0] >= 2


def test_a_store_with_a_tenth_of_the_memory_ranks_the_same(tmp_path: Path) -> None:
    entities, dim = 40_000, 32
    asked = np.random.default_rng(5).integers([entities, 2, entities], size=(60, 3))
    known = KnownTriples([asked])
    weights = torch.randn(entities, dim, generator=torch.Generator().manual_seed(6))
    relations = nn.Embedding(2, dim)
    plain = DistMult(nn.Embedding(entities, dim, _weight=weights), relations)
    expected = rank(plain, asked, known, entities=entities)
    # A row is 32 weights and 32 floats of optimizer state; 10 MB in all.
    with rowmill.open(tmp_path, memory="64MiB", row_memory="1MiB") as store:
        table = store.table(
            "entities",
            dim=dim,
            num_rows=entities,
            optimizer=rowmill.optim.Adagrad(lr=0.1),
        )
        for start in range(0, entities, 4096):
            part = weights[start : start + 4096]
            table.put(torch.arange(start, start + len(part)), part)
        before: dict[str, Any] = store.stats()
        stored = DistMult(Embedding(entities, dim, table=table), relations)
        ranks = rank(stored, asked, known, entities=entities)
        after = store.stats()
    np.testing.assert_array_equal(ranks.heads, expected.heads)
    np.testing.assert_array_equal(ranks.tails, expected.tails)
    assert after["row_limit"] <= entities * dim * 8 / 9
    assert after["cold_reads"] - before["cold_reads"] > entities / 2
    assert after["rows_dirty"] <= before["rows_dirty"], "evaluation changes nothing"
