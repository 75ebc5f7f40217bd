"""Filtered ranking: the rank of the right answer among all entities, not counting other known answers.

Every triple gives two queries: for its tail and for its head. The rank of an answer is 1, plus the number of candidates
with a higher score, plus half the number with an equal score. So a model with constant scores gets the mean rank.
Entities are read in chunks, so their table may exceed memory (`rowmill.kge.scorer`).

Shapes: n triples, Q queries of a block, C entities of a chunk, D weights of an entity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.kge.scorer import BLOCK_QUERIES, CHUNK_ENTITIES, Scorer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rowmill.kge.models import TripleModel

_GROUP_TRIPLES = 8192
"""Triples whose queries are in memory at a time; all entities are read once per group."""
_PIECE_TRIPLES = 1 << 20
"""Known triples that are filtered at a time."""


class KnownTriples:
    """An index of the known triples: for a query, all its known answers.

    Args:
        parts: Arrays of triples, int64 `[n, 3]`: head, relation, tail. Triples may repeat. The arrays are read in pieces,
            so they may be memory-mapped files that do not fit into memory.
        asked: Triples in the same form. Only answers to their queries are kept, which saves memory; None: keep all.
    """

    def __init__(
        self,
        parts: Sequence[NDArray[np.int64]],
        *,
        asked: Sequence[NDArray[np.int64]] | None = None,
    ) -> None:
        numbers = (int(part[:, 1].max(initial=0)) for part in [*parts, *(asked or [])])
        self._relations = max(numbers, default=0) + 1
        self._tails = self._answers(parts, asked, given=0, answer=2)
        self._heads = self._answers(parts, asked, given=2, answer=0)

    def _answers(
        self,
        parts: Sequence[NDArray[np.int64]],
        asked: Sequence[NDArray[np.int64]] | None,
        *,
        given: int,
        answer: int,
    ) -> _Answers:
        def keys_of(triples: NDArray[np.int64]) -> NDArray[np.int64]:
            return triples[:, given] * self._relations + triples[:, 1]

        wanted = None if asked is None else np.unique(np.concatenate([keys_of(a) for a in asked]))
        keys: list[NDArray[np.int64]] = []
        entities: list[NDArray[np.int64]] = []
        for part in parts:
            for start in range(0, len(part), _PIECE_TRIPLES):
                piece = part[start : start + _PIECE_TRIPLES]
                found = keys_of(piece)
                kept = slice(None) if wanted is None else _among(found, wanted)
                keys.append(found[kept])
                entities.append(piece[kept, answer])
        none = np.empty(0, np.int64)
        return _Answers(np.concatenate([none, *keys]), np.concatenate([none, *entities]))

    def tails(
        self, heads: NDArray[np.int64], relations: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The known tails of queries, as two arrays: the position of the query, and the entity."""
        return self._tails.of(self._keys(heads, relations))

    def heads(
        self, tails: NDArray[np.int64], relations: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The known heads of queries, in the same form."""
        return self._heads.of(self._keys(tails, relations))

    def _keys(self, given: NDArray[np.int64], relations: NDArray[np.int64]) -> NDArray[np.int64]:
        # A relation number beyond the known ones would collide with the key of another query.
        return np.where(relations < self._relations, given * self._relations + relations, -1)


class _Answers:
    """A map from a query key to its entities, as two sorted arrays."""

    def __init__(self, keys: NDArray[np.int64], entities: NDArray[np.int64]) -> None:
        order = np.lexsort((entities, keys))
        self._keys = keys[order]
        self._entities = entities[order]

    def of(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first = np.searchsorted(self._keys, keys, side="left")
        counts = np.searchsorted(self._keys, keys, side="right") - first
        queries = np.repeat(np.arange(len(keys)), counts)
        within = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
        return queries, self._entities[np.repeat(first, counts) + within]


def _among(values: NDArray[np.int64], ordered: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which values occur in the sorted array `ordered`."""
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return ordered[places] == values


@dataclass(frozen=True)
class AnswerRanks:
    """Ranks of the right heads and tails, float64 `[n]` each. Ties may give halves."""

    heads: NDArray[np.float64]
    tails: NDArray[np.float64]

    def figures(self) -> dict[str, float | None]:
        """`mrr`, `hits@1`, `hits@3` and `hits@10` over heads and tails, and `mrr_heads` and `mrr_tails`.

        None without triples.
        """
        both = np.concatenate([self.heads, self.tails])
        return {
            "mrr": _mean(1 / both),
            **{f"hits@{k}": _mean(both <= k) for k in (1, 3, 10)},
            "mrr_heads": _mean(1 / self.heads),
            "mrr_tails": _mean(1 / self.tails),
        }


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


@torch.no_grad()
def rank(
    model: TripleModel,
    triples: NDArray[np.int64],
    known: KnownTriples,
    *,
    entities: int,
    reciprocal: int | None = None,
    chunk: int = CHUNK_ENTITIES,
    block: int = BLOCK_QUERIES,
) -> AnswerRanks:
    """Rank the head and the tail of every triple among all entities. Rows are not changed.

    Args:
        model: The model; it is set to evaluation mode during the call.
        triples: int64 `[n, 3]`: head, relation, tail.
        known: Known triples. The other known answers of a query are not counted as candidates.
        entities: Number of entities.
        reciprocal: Offset of reciprocal relations: the head query of relation `r` is the tail query of `r + reciprocal`.
            None: use the model's `head_query`.
        chunk: Entities read at a time.
        block: Queries scored at a time.

    Raises:
        InvalidInput: `triples` has the wrong shape or dtype or names an unknown entity, or a score is not finite.
    """
    if triples.ndim != 2 or triples.shape[1] != 3 or triples.dtype.kind not in "iu":
        raise InvalidInput(
            f"triples must be integers of shape [n, 3]: head, relation, tail; got {triples.dtype} {list(triples.shape)}"
        )
    ends = triples[:, [0, 2]]
    wrong = np.argwhere((ends < 0) | (ends >= entities))
    if len(wrong):
        row, side = wrong[0]
        raise InvalidInput(
            f"triples[{row}] has {('head', 'tail')[side]} {ends[row, side]}, but entities = {entities}: entity numbers "
            f"must be in [0, {entities})"
        )
    if min(chunk, block) < 1:
        raise InvalidInput(
            f"chunk and block must be at least 1, got chunk = {chunk} and block = {block}"
        )
    training = model.training
    model.eval()
    ranker = _Ranker(Scorer(model, entities, reciprocal=reciprocal, chunk=chunk, block=block))
    ranks = np.empty((2, len(triples)))
    for start in range(0, len(triples), _GROUP_TRIPLES):
        group = triples[start : start + _GROUP_TRIPLES]
        ranks[:, start : start + len(group)] = ranker.ranks(group, known)
    model.train(training)
    return AnswerRanks(heads=ranks[0], tails=ranks[1])


class _Ranker:
    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def ranks(self, triples: NDArray[np.int64], known: KnownTriples) -> NDArray[np.float64]:
        """Ranks of heads and tails, `[2, n]`."""
        scorer = self._scorer
        heads, relations, tails = triples.T
        queries = torch.cat(
            [
                scorer.queries(tails, relations, heads_asked=True),
                scorer.queries(heads, relations, heads_asked=False),
            ]
        )
        answers = np.concatenate([heads, tails])
        of_heads, of_tails = known.heads(tails, relations), known.tails(heads, relations)
        # The answer itself is excluded too: it must not count as a tie with itself.
        known_queries = np.concatenate(
            [of_heads[0], of_tails[0] + len(heads), np.arange(len(answers))]
        )
        known_entities = np.concatenate([of_heads[1], of_tails[1], answers])
        order = np.argsort(known_entities, kind="stable")
        blocks = [
            _QueryBlock(
                block,
                answers[start : start + scorer.block],
                start,
                known_queries[order],
                known_entities[order],
            )
            for start, block in scorer.blocks(queries)
        ]
        for asked in blocks:
            asked.set_answers(scorer.of_answers(asked.queries, asked.answers))
        for first, last, rows in scorer.chunks():
            for asked in blocks:
                asked.compare(scorer.scores(asked.queries, rows), first, last)
        ranks = np.concatenate([asked.ranks() for asked in blocks])
        return ranks.reshape(2, -1)


class _QueryBlock:
    """A block of queries, with the number of better and equal candidates counted so far."""

    def __init__(
        self,
        queries: Tensor,
        answers: NDArray[np.int64],
        start: int,
        known_queries: NDArray[np.int64],
        known_entities: NDArray[np.int64],
    ) -> None:
        self.queries = queries
        self.answers = answers
        here = (known_queries >= start) & (known_queries < start + len(answers))
        self._known_queries = torch.from_numpy(known_queries[here] - start)
        self._known_entities = known_entities[here]
        self._scores = torch.empty(0)
        self._better = torch.zeros(len(queries), dtype=torch.int64)
        self._equal = torch.zeros(len(queries), dtype=torch.int64)

    def set_answers(self, scores_Q: Tensor) -> None:
        """Store the score of every query's own answer."""
        self._scores = scores_Q.unsqueeze(1)
        if not bool(self._scores[: len(self.answers)].isfinite().all()):
            raise InvalidInput(
                "the score of a triple is NaN or infinite: the model has diverged; train it with a lower rows.lr"
            )

    def compare(self, scores_QC: Tensor, first: int, last: int) -> None:
        """Count the candidates in `[first, last)` that score better or equal; columns beyond `last` are padding."""
        scores_QC[:, last - first :] = -torch.inf
        here = slice(*np.searchsorted(self._known_entities, [first, last]))
        columns = torch.from_numpy(self._known_entities[here] - first)
        scores_QC[self._known_queries[here], columns] = -torch.inf
        # NaN counts as better, so that it cannot improve a model's metrics.
        self._better += scores_QC.shape[1] - (scores_QC <= self._scores).sum(dim=1)
        self._equal += (scores_QC == self._scores).sum(dim=1)

    def ranks(self) -> NDArray[np.float64]:
        """The rank of every answer: the mean of the best and the worst rank that ties allow."""
        ranks = 1 + self._better.double() + self._equal.double() / 2
        return ranks[: len(self.answers)].numpy()
