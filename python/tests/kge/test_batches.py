"""Batches of a knowledge graph: each triple or query once per epoch, the same after a resume, each row listed once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rowmill.kge import GraphBatch, GraphBatches
from rowmill.kge.graph import Graph
from rowmill.kge.settings import KgeConfig

N, R, TRIPLES, BATCH = 40, 3, 300, 32

Query = tuple[str, int, int, int]


@pytest.fixture
def graph() -> Graph:
    random = np.random.default_rng(7)
    train = random.integers([N, R, N], size=(TRIPLES, 3))
    names = pa.array([str(number) for number in range(N)])
    return Graph(names, names[:R], train, train[:1], train[:1])


def make(graph: Graph, seed: int = 1, **settings: Any) -> GraphBatches:
    return GraphBatches(graph, KgeConfig(**settings), batch=BATCH, seed=seed)


def questions(batch: GraphBatch) -> list[Query]:
    """Per query and right answer: the side that is asked, the known entity, the relation, the answer."""
    given = batch.entities[batch.given[batch.queries]].tolist()
    relations = batch.relations[batch.relation_of[batch.queries]].tolist()
    answers = batch.entities[batch.answers].tolist()
    sides = ["tail" if query < batch.tail_queries else "head" for query in batch.queries.tolist()]
    return list(zip(sides, given, relations, answers, strict=True))


def expected(graph: Graph, reciprocal: bool) -> Counter[Query]:
    more = R if reciprocal else 0
    both = [
        query
        for head, relation, tail in graph.train.tolist()
        for query in (("tail", head, relation, tail), ("head", tail, relation + more, head))
    ]
    return Counter(both)


@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("objective", ["1vsall", "negatives"])
def test_every_triple_gives_a_tail_and_a_head_query_once_per_epoch(
    graph: Graph, objective: str, partitions: int, reciprocal: bool
) -> None:
    batches = make(
        graph,
        objective=objective,
        reciprocal=reciprocal,
        partitions=partitions if objective == "negatives" else 1,
        buffer_partitions=2,
    )
    epochs = [list(batches.epoch(number, 0)) for number in (0, 1)]
    for epoch in epochs:
        assert Counter(q for batch in epoch for q in questions(batch)) == expected(
            graph, reciprocal
        )
        assert sum(map(len, epoch)) == batches.examples == TRIPLES
        assert epoch[-1].stop == TRIPLES
    assert questions(epochs[0][0]) != questions(epochs[1][0]), "epochs are shuffled"


def test_every_distinct_query_comes_once_with_all_its_answers(graph: Graph) -> None:
    for reciprocal in (True, False):
        batches = make(graph, objective="kvsall", reciprocal=reciprocal)
        epoch = list(batches.epoch(0, 0))
        asked = Counter(q for batch in epoch for q in questions(batch))
        assert asked == Counter(set(expected(graph, reciprocal)))
        distinct = {query[:3] for query in asked}
        assert sum(len(batch.given) for batch in epoch) == batches.examples == len(distinct)


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "1vsall"},
        {"objective": "kvsall"},
        {"negatives": 9},
        {"negatives": 9, "partitions": 6, "buffer_partitions": 3},
    ],
)
def test_an_epoch_can_resume_after_any_batch(graph: Graph, settings: dict[str, Any]) -> None:
    whole = list(make(graph, **settings).epoch(2, 0))
    for done in (1, len(whole) // 2, len(whole)):
        rest = list(make(graph, **settings).epoch(2, whole[done - 1].stop))
        assert len(rest) == len(whole) - done
        for one, other in zip(rest, whole[done:], strict=True):
            for name, value in vars(one).items():
                same = getattr(other, name)
                assert (
                    torch.equal(value, same) if isinstance(value, torch.Tensor) else value == same
                )
    assert [questions(batch) for batch in make(graph, seed=2, **settings).epoch(2, 0)] != [
        questions(batch) for batch in whole
    ]


@pytest.mark.parametrize("in_batch", [True, False])
def test_a_batch_lists_each_row_once(graph: Graph, in_batch: bool) -> None:
    for batch in make(graph, negatives=9, in_batch=in_batch).epoch(0, 0):
        for ids in (batch.entities, batch.relations):
            assert len(ids.unique()) == len(ids)
        used = torch.cat([batch.given, batch.answers])
        if in_batch:
            assert batch.candidates is None
        else:
            assert batch.candidates is not None
            assert len(batch.candidates) == 9
            used = torch.cat([used, batch.candidates])
            assert len(used.unique()) == len(batch.entities)


def test_negatives_are_drawn_evenly_and_from_the_buffer(graph: Graph) -> None:
    batches = make(graph, negatives=400)
    drawn = torch.cat([b.entities[b.candidates] for b in batches.epoch(0, 0)])  # pyright: ignore
    counts = torch.bincount(drawn, minlength=N)
    assert len(counts) == N
    assert 60 < counts.min() <= counts.max() < 140, "4,000 draws among 40 entities"

    partitioned = make(graph, negatives=400, partitions=5, buffer_partitions=2)
    held: list[set[int]] = []
    for batch in partitioned.epoch(0, 0):
        assert batch.candidates is not None
        negatives = {entity * 5 // N for entity in batch.entities[batch.candidates].tolist()}
        triples = {entity * 5 // N for entity in batch.entities[batch.given].tolist()}
        assert triples <= negatives, "the triples of a batch are within its buffer"
        assert len(negatives) == 2
        if not held or held[-1] != negatives:
            held.append(negatives)
    assert all(len(one & other) == 1 for one, other in pairwise(held))
    assert len({frozenset(pair) for pair in held}) == len(held) == 10


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "negatives", "negatives": 7},
        {"objective": "negatives", "negatives": 5, "in_batch": True, "partitions": 3},
        {"objective": "1vsall", "reciprocal": False},
        {"objective": "kvsall", "reciprocal": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_parts_of_all_ranks_are_the_batches_of_one_process(
    graph: Graph, settings: dict[str, Any], ranks: int
) -> None:
    """Batches of 4 and 5 ranks leave some rank without queries: a stand-in without weight."""
    config = KgeConfig(**settings)
    whole = list(GraphBatches(graph, config, batch=4, seed=1).epoch(2, 0))
    parts = [
        list(GraphBatches(graph, config, batch=4, seed=1, rank=rank, ranks=ranks).epoch(2, 0))
        for rank in range(ranks)
    ]
    stood_in = False
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        places: list[int] = []
        asked: Counter[Query] = Counter()
        for part in of_ranks:
            assert part.part is not None
            assert part.part.queries == len(batch.given)
            assert (part.stop, part.examples) == (batch.stop, batch.examples)
            assert candidates_of(part) == candidates_of(batch)
            if settings.get("in_batch") or settings["objective"] != "negatives":
                assert torch.equal(part.entities, batch.entities)
            # Queries are those at their places of the whole batch.
            given = batch.entities[batch.given[part.part.places]]
            assert torch.equal(part.entities[part.given], given)
            assert part.tail_queries == int((part.part.places < batch.tail_queries).sum())
            if part.part.share == 0:
                stood_in = True
                continue
            assert part.part.share == len(part.given) / len(batch.given)
            places += part.part.places.tolist()
            asked += Counter(questions(part))
        assert sorted(places) == list(range(len(batch.given)))
        assert asked == Counter(questions(batch))
    assert stood_in == (ranks == 5)


def candidates_of(batch: GraphBatch) -> list[int] | None:
    return None if batch.candidates is None else batch.entities[batch.candidates].tolist()
