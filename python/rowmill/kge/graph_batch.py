"""Batches of queries for training, in an order determined by seed, epoch and position.

The objective selects the candidates of a query:

- `1vsall`: both queries of every triple, against all entities; the answer in the triple is right;
- `kvsall`: every distinct query once, against all entities; all its answers in the training triples are right;
- `negatives`: both queries of every triple, against entities drawn for the batch and, with `in_batch`, also against
  all other entities of the batch.

A batch lists each entity and relation once, and refers to them by their positions in these lists. So a step reads and
updates every row once. With partitions, triples are grouped by bucket in BETA order (`rowmill.kge.order`), and
negatives are drawn from the partitions in the buffer.

On many ranks, each rank has a part of the queries of every batch, with the candidates that one process would have.

Shapes: Q queries, P right answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rowmill.kge.order import beta_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from rowmill.kge.graph import Graph
    from rowmill.kge.settings import KgeConfig

_ORDER, _NEGATIVES, _PARTITIONS = range(3)
"""Streams of random numbers: they enter the seed, so that the streams are independent."""


@dataclass(frozen=True)
class Part:
    """The queries of a batch that one of many ranks has.

    Attributes:
        places: `[Q]`, the position of each of its queries among those of all ranks.
        queries: Number of queries of all ranks.
        share: Its part of them. 0 if there are fewer queries than ranks: then the first query stands in, without weight.
    """

    places: Tensor
    queries: int
    share: float


@dataclass(frozen=True)
class GraphBatch:
    """A batch of queries, the entities and relations they need, and their candidates; int64 tensors.

    Attributes:
        entities: Distinct numbers of the entities whose rows are needed.
        relations: Distinct numbers of the relations whose rows are needed.
        given: `[Q]`, for every query the position of its known entity in `entities`.
        relation_of: `[Q]`, the position of its relation in `relations`.
        tail_queries: Number of queries that ask for a tail. They come first; the rest ask for a head.
        queries: `[P]`, for every right answer the number of its query, ascending.
        answers: `[P]`, its position in `entities`.
        candidates: Positions in `entities` of the negatives that all queries share; None: all `entities` are candidates.
        stop: Number of the epoch's next example after this batch.
        examples: Number of examples in the batch, of all ranks.
        part: On many ranks, which queries of the batch these are.
    """

    entities: Tensor
    relations: Tensor
    given: Tensor
    relation_of: Tensor
    tail_queries: int
    queries: Tensor
    answers: Tensor
    candidates: Tensor | None
    stop: int
    examples: int
    part: Part | None = None

    def __len__(self) -> int:
        return self.examples

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        tensors = (
            self.entities,
            self.relations,
            self.given,
            self.relation_of,
            self.queries,
            self.answers,
        )
        candidates = 0 if self.candidates is None else self.candidates.nbytes
        return sum(tensor.nbytes for tensor in tensors) + candidates


class GraphBatches:
    """The batches of the training triples, epoch by epoch; with `ranks`, the part of one rank of every batch."""

    def __init__(
        self,
        graph: Graph,
        settings: KgeConfig,
        *,
        batch: int,
        seed: int,
        rank: int = 0,
        ranks: int | None = None,
    ) -> None:
        self._settings = settings
        self._rank, self._ranks = rank, ranks
        self._batch = batch
        self._seed = seed
        self._entities = graph.entity_count
        self._all = torch.arange(self._entities)
        self._reciprocal = graph.relation_count if settings.reciprocal else 0
        if settings.objective == "kvsall":
            self._queries = _DistinctQueries(graph.train, self._reciprocal)
            self.examples = len(self._queries)
        else:
            self._partitioned = _Partitioned(graph.train, self._entities, settings.partitions)
            self.examples = len(graph.train)

    def epoch(self, number: int, start: int) -> Iterator[GraphBatch]:
        """The batches of an epoch, starting at example `start`: 0, or the `stop` of a batch."""
        if self._settings.objective == "kvsall":
            order = self._random(_ORDER, number).permutation(self.examples)
            for stop, chosen in _slices(order, start, self._batch):
                yield self._of_queries(chosen, stop)
            return
        settings = self._settings
        shuffle = self._random(_PARTITIONS, number)
        stages = self._partitioned.stages(settings.buffer_partitions, shuffle)
        before = 0
        for stage, (pool, triples) in enumerate(stages):
            shuffled = self._random(_ORDER, number, stage).permutation(triples)
            for stop, chosen in _slices(shuffled, max(start - before, 0), self._batch):
                yield self._of_triples(chosen, pool, number, before + stop)
            before += len(triples)

    def _of_queries(self, chosen: NDArray[np.int64], stop: int) -> GraphBatch:
        chosen = self._queries.tails_first(chosen)
        own, counts = self._own(len(chosen))
        part = self._part(np.arange(len(chosen))[own], len(chosen), counts)
        batch = self._queries.batch(chosen[own], self._all, stop)
        return replace(batch, examples=len(chosen), part=part)

    def _of_triples(
        self, triples: NDArray[np.int64], pool: NDArray[np.int64], epoch: int, stop: int
    ) -> GraphBatch:
        own, counts = self._own(len(triples))
        heads, relations, tails = triples[own].T
        given = np.concatenate([heads, tails])
        answers = np.concatenate([tails, heads])
        asked = np.concatenate([relations, relations + self._reciprocal])
        relation_ids, relation_of = np.unique(asked, return_inverse=True)
        settings = self._settings
        if settings.objective == "1vsall":
            entities, candidates = self._all, None
        else:
            drawn = _draw(self._random(_NEGATIVES, epoch, stop), pool, settings.negatives)
            # With `in_batch`, the candidates are the entities of all ranks.
            others = triples[:, [0, 2]].ravel() if settings.in_batch else given
            ids = np.unique(np.concatenate([others, drawn]))
            given, answers = np.searchsorted(ids, given), np.searchsorted(ids, answers)
            entities = torch.from_numpy(ids)
            candidates = None
            if not settings.in_batch:
                candidates = torch.from_numpy(np.searchsorted(ids, drawn))
        places = np.arange(len(triples))[own]
        places = np.concatenate([places, places + len(triples)])
        return GraphBatch(
            entities=entities,
            relations=torch.from_numpy(relation_ids),
            given=torch.from_numpy(given),
            relation_of=torch.from_numpy(relation_of),
            tail_queries=len(heads),
            queries=torch.arange(len(given)),
            answers=torch.from_numpy(answers),
            candidates=candidates,
            stop=stop,
            examples=len(triples),
            part=self._part(places, 2 * len(triples), counts),
        )

    def _own(self, examples: int) -> tuple[slice, bool]:
        """The examples of a batch that this rank has; and False, if it has none and the first one stands in."""
        if self._ranks is None:
            return slice(None), True
        begin = examples * self._rank // self._ranks
        end = examples * (self._rank + 1) // self._ranks
        return (slice(begin, end), True) if begin < end else (slice(0, 1), False)

    def _part(self, places: NDArray[np.int64], queries: int, counts: bool) -> Part | None:
        if self._ranks is None:
            return None
        return Part(torch.from_numpy(places), queries, len(places) / queries if counts else 0.0)

    def _random(self, purpose: int, *position: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, purpose, *position])


class _Partitioned:
    """Triples sorted by bucket: the partition of the head and the partition of the tail."""

    def __init__(self, triples: NDArray[np.int64], entities: int, partitions: int) -> None:
        self._bounds = np.arange(partitions + 1) * entities // partitions
        self._partitions = partitions
        if partitions == 1:
            self._triples, self._ends = triples, np.array([0, len(triples)])
            return
        head = np.searchsorted(self._bounds, triples[:, 0], side="right") - 1
        tail = np.searchsorted(self._bounds, triples[:, 2], side="right") - 1
        buckets = head * partitions + tail
        order = np.argsort(buckets, kind="stable")
        self._triples = triples[order]
        self._ends = np.searchsorted(buckets[order], np.arange(partitions**2 + 1))

    def stages(
        self, capacity: int, random: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield for each buffer the bounds of its partitions `[n, 2]` and its triples.

        The numbering of partitions in BETA order is drawn again on each call.
        """
        name = random.permutation(self._partitions)
        for buffer, buckets in beta_order(self._partitions, min(capacity, self._partitions)):
            held = np.sort(name[list(buffer)])
            pool = np.stack([self._bounds[held], self._bounds[held + 1]], axis=1)
            numbers = [name[head] * self._partitions + name[tail] for head, tail in buckets]
            parts = [self._triples[self._ends[n] : self._ends[n + 1]] for n in numbers]
            yield pool, np.concatenate(parts)


class _DistinctQueries:
    """Every distinct tail query and head query, with all its answers."""

    def __init__(self, triples: NDArray[np.int64], reciprocal: int) -> None:
        heads, relations, tails = np.unique(triples, axis=0).T
        tail_side = np.stack([np.zeros_like(heads), heads, relations, tails])
        head_side = np.stack([np.ones_like(heads), tails, relations + reciprocal, heads])
        rows = np.concatenate([tail_side, head_side], axis=1).T
        rows = rows[np.lexsort(rows.T[::-1])]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:, :3] != rows[:-1, :3]).any(axis=1)
        self._starts = np.append(np.flatnonzero(first), len(rows))
        self._side, self._given, self._relation = rows[self._starts[:-1], :3].T
        self._answers = rows[:, 3]

    def __len__(self) -> int:
        return len(self._given)

    def tails_first(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """The chosen queries, tail queries first."""
        return chosen[np.argsort(self._side[chosen], kind="stable")]

    def batch(self, chosen: NDArray[np.int64], entities: Tensor, stop: int) -> GraphBatch:
        """A batch of the chosen queries, which are ordered by `tails_first`."""
        starts = self._starts[chosen]
        counts = self._starts[chosen + 1] - starts
        queries = np.repeat(np.arange(len(chosen)), counts)
        within = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
        answers = self._answers[np.repeat(starts, counts) + within]
        relation_ids, relation_of = np.unique(self._relation[chosen], return_inverse=True)
        return GraphBatch(
            entities=entities,
            relations=torch.from_numpy(relation_ids),
            given=torch.from_numpy(self._given[chosen]),
            relation_of=torch.from_numpy(relation_of),
            tail_queries=int((self._side[chosen] == 0).sum()),
            queries=torch.from_numpy(queries),
            answers=torch.from_numpy(answers),
            candidates=None,
            stop=stop,
            examples=len(chosen),
        )


def _slices(
    order: NDArray[np.int64], start: int, batch: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for first in range(start, len(order), batch):
        stop = min(first + batch, len(order))
        yield stop, order[first:stop]


def _draw(random: np.random.Generator, bounds: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """`count` numbers drawn uniformly from the union of ranges `[n, 2]`."""
    sizes = bounds[:, 1] - bounds[:, 0]
    drawn = random.integers(sizes.sum(), size=count)
    ends = np.cumsum(sizes)
    part = np.searchsorted(ends, drawn, side="right")
    return bounds[part, 0] + drawn - (ends - sizes)[part]
