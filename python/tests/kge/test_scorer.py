"""Scores do not depend on how they are asked for: as answers, as one query, or in other blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rowmill.kge import MODELS
from rowmill.kge.scorer import Scorer

ENTITIES, DIM = 700, 200


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize(("kind", "norm"), [*((kind, 1) for kind in MODELS), ("transe", 2)])
@torch.no_grad()
def test_scores_of_pairs_queries_and_blocks_have_equal_bits(
    kind: str, norm: int, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    relation_dim = MODELS[kind].relation_dim(DIM)
    rows = nn.Embedding(ENTITIES, DIM), nn.Embedding(3, relation_dim)
    model = MODELS[kind](*rows, norm=norm, margin=2.0)
    stream = np.random.default_rng(2)
    triples = stream.integers(0, [ENTITIES, 3, ENTITIES], (40, 3))
    heads, relations, tails = triples.T.copy()
    # Several chunks, the last one padded; a block of one where rounding allows it.
    whole = Scorer(model, ENTITIES, reciprocal=None, chunk=256)
    single = whole if model.dot_scores else Scorer(model, ENTITIES, reciprocal=None, block=1)
    pairs = whole.of_triples(triples)
    queries = whole.queries(heads, relations, heads_asked=False)
    nothing = np.empty(0, np.int64)
    for number in range(0, 40, 13):
        entities, scores = single.best(queries[number : number + 1], ENTITIES, nothing)
        assert sorted(entities) == list(range(ENTITIES))
        assert list(scores) == sorted(scores, reverse=True)
        assert scores[entities == tails[number]] == pairs[number]
        few, best = single.best(queries[number : number + 1], 5, entities[:2])
        assert list(few) == list(entities[2:7])
        assert list(best) == list(scores[2:7])
    torch.set_num_threads(before)


@torch.no_grad()
def test_equal_scores_are_ordered_by_number() -> None:
    model = MODELS["distmult"](nn.Embedding(600, 4), nn.Embedding(1, 4))
    nn.init.ones_(model.entities.weight)  # pyright: ignore[reportArgumentType]
    scorer = Scorer(model, 600, reciprocal=None, chunk=100)
    query = scorer.queries(np.array([0]), np.array([0]), heads_asked=False)
    entities, _ = scorer.best(query, 5, np.array([1, 3]))
    assert list(entities) == [0, 2, 4, 5, 6]
