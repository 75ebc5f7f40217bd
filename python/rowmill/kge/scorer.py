"""Scores of queries against entities, which are read in chunks, so that their table may exceed memory.

One matrix product scores a block of queries against a chunk. All products have the same shape (the last chunk and block
are padded), so the rounding of a score does not depend on its chunk. The score of an answer comes from a product of this
shape too. So ranking, prediction and queries give equal scores to the bit.

Shapes: n queries, Q queries of a block, C entities of a chunk, D weights of an entity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from rowmill.kge.models import TripleModel

CHUNK_ENTITIES = 4096
BLOCK_QUERIES = 512
_PAIRS = 16
"""Distances of pairs are the diagonals of blocks of this size."""


class Scorer:
    """Scores by a model in evaluation mode; call it without gradients.

    Args:
        model: The model.
        entities: Number of entities.
        reciprocal: Offset of reciprocal relations: the head query of relation `r` is the tail query of `r + reciprocal`.
            None: use the model's `head_query`.
        chunk: Most entities read at a time.
        block: Most queries scored at a time.
    """

    def __init__(
        self,
        model: TripleModel,
        entities: int,
        *,
        reciprocal: int | None,
        chunk: int = CHUNK_ENTITIES,
        block: int = BLOCK_QUERIES,
    ) -> None:
        self._model = model
        self._entities = entities
        self._reciprocal = reciprocal
        self._chunk = min(chunk, entities)
        self.block = min(block, self._chunk)

    def queries(
        self, given: NDArray[np.int64], relations: NDArray[np.int64], *, heads_asked: bool
    ) -> Tensor:
        """The queries `[n, D]` for heads or tails, from the entities and relations that are given."""
        ask = self._model.tail_query
        if heads_asked and self._reciprocal is not None:
            relations = relations + self._reciprocal
        elif heads_asked:
            ask = self._model.head_query
        entity_rows = self._model.entities(torch.from_numpy(given))
        return ask(entity_rows, self._model.relations(torch.from_numpy(relations)))

    def blocks(self, queries: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The queries in padded blocks `[Q, D]`, each with the number of its first query."""
        for start in range(0, len(queries), self.block):
            yield start, _filled(queries[start : start + self.block], self.block)

    def chunks(self) -> Iterator[tuple[int, int, Tensor]]:
        """All entities: the first, the one after the last, and their padded rows `[C, D]`."""
        for first in range(0, self._entities, self._chunk):
            last = min(first + self._chunk, self._entities)
            yield first, last, self._rows(torch.arange(first, last))

    def scores(self, block: Tensor, chunk: Tensor) -> Tensor:
        """Scores of a block of queries against a chunk, `[Q, C]`; rows and columns of padding have no meaning."""
        return self._model.scores(block, chunk)

    def of_answers(self, block: Tensor, answers: NDArray[np.int64]) -> Tensor:
        """The score of every query's own answer, `[Q]`; beyond the answers, padding without meaning."""
        rows = self._rows(torch.from_numpy(answers))
        if self._model.dot_scores:
            return self.scores(block, rows).diagonal()[: len(block)].clone()
        # The rounding of a distance depends on its two vectors alone, so small blocks suffice.
        starts = range(0, len(block), _PAIRS)
        parts = [self.scores(block[s : s + _PAIRS], rows[s : s + _PAIRS]) for s in starts]
        return torch.cat([part.diagonal() for part in parts])

    def of_triples(self, triples: NDArray[np.int64]) -> NDArray[np.float32]:
        """Scores of triples `[n, 3]` of head, relation and tail, `[n]`: the scores of the queries for their tails."""
        heads, relations, tails = (np.ascontiguousarray(column) for column in triples.T)
        queries = self.queries(heads, relations, heads_asked=False)
        found = [
            self.of_answers(block, tails[start : start + self.block])
            for start, block in self.blocks(queries)
        ]
        return torch.cat([torch.empty(0), *found])[: len(triples)].numpy()

    def best(
        self,
        query: Tensor,
        count: int,
        excluded: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The entities with the highest scores for one query `[1, D]`, highest first; of equal ones the lowest number.

        Args:
            query: The query.
            count: Most entities to return.
            excluded: Entities to leave out.

        Returns:
            Numbers of entities and their scores.
        """
        ((_, block),) = self.blocks(query)
        entities, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        for first, last, rows in self.chunks():
            numbers = np.arange(first, last)
            found = self.scores(block, rows)[0, : last - first].numpy()
            kept = ~np.isin(numbers, excluded)
            entities = np.concatenate([entities, numbers[kept]])
            scores = np.concatenate([scores, found[kept]])
            order = np.lexsort((entities, -scores))[:count]
            entities, scores = entities[order], scores[order]
        return entities, scores

    def _rows(self, entities: Tensor) -> Tensor:
        return _filled(self._model.entities(entities), self._chunk)


def _filled(rows: Tensor, count: int) -> Tensor:
    """The rows, padded with zeros to `count`."""
    if len(rows) == count:
        return rows
    return torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])])
