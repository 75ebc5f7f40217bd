"""Bags that are pooled by the ranks that keep their rows.

A rank sends every id of such a bag, the length of each bag at each rank and, if ids have weights, those too. Each rank that
keeps rows of the table answers with one vector per bag: the sum over the ids that it received. The exchange treats these
vectors like rows: they have places in the same messages, and a bag "looks up" one vector per answering rank.

The gradient of a vector is added to the rows of its bag in the order of ranks, features, samples and lookups, which is the
order of one rank that has all samples.

In the message of ids to a rank, the ids of all categories come first, then the *tail*: int32 lengths of all bags that this
rank pools, then float32 weights of their ids, if any, padded to whole 64-bit words.

Shapes as in `rowmill.ops.exchange.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch

from rowmill.ops.exchange import (
    Bags,
    Message,
    RecoveredFeature,
    SortedFeature,
    Unique,
    bag_sort,
    recover,
    recover_backward,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rowmill.distributed.strategy import Lane


@dataclass(frozen=True, eq=False)
class BagRequest:
    """The bags of a lane's pooled categories.

    Attributes:
        ids: int64 [N], ordered by category, feature and bag.
        offsets: int64 [F * B + 1], offsets of bags in the ids.
        weights: float32 [N], without gradient, or None.
        count: B.
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None
    count: int


class SentBags:
    """A `BagRequest`, sorted by the ranks that pool.

    Attributes:
        counts: int32 [R, P], ids per rank and pooled category.
        ids: Per rank, its ids.
        tails: Per rank, the tail of its message.
        count: B.
        weighted: Whether ids have weights.
    """

    def __init__(self, lane: Lane, request: BagRequest, ranks: int) -> None:
        features = [
            SortedFeature(of.category, of.rank, of.padding)
            for of in lane.pooled
            for _ in range(of.features)
        ]
        found = bag_sort(request.ids, request.offsets, features, ranks)
        self.count = request.count
        self.weighted = request.weights is not None
        by_feature = found.lengths.sum(dim=2, dtype=torch.int32)
        self.counts = torch.stack(
            [of.sum(dim=1, dtype=torch.int32) for of in _by_category(lane, by_feature, dim=1)],
            dim=1,
        )
        sizes: list[int] = self.counts.sum(dim=1).numpy().tolist()
        self.ids = torch.split(found.ids, sizes)
        weights = torch.empty(len(found.ids) if request.weights is not None else 0)
        if request.weights is not None:
            sent_N = found.positions >= 0
            weights[found.positions[sent_N].long()] = request.weights[sent_N]
        weights_of = torch.split(weights, sizes if self.weighted else [0] * ranks)
        self.tails = [
            _tail(found.lengths[rank][_features_of(lane, rank)], weights_of[rank])
            for rank in range(ranks)
        ]


def vector_counts(lane: Lane, rank: int, count: int) -> list[int]:
    """Per pooled category, the number of vectors that a rank returns for `count` samples."""
    return [of.features * count if of.by(rank) else 0 for of in lane.pooled]


def vector_positions(lane: Lane, message: Message, count: int) -> Tensor:
    """int32: for every bag of the pooled categories, in order, the positions of its vectors in the message."""
    counts_RC = message.counts.view(-1, len(lane.categories))
    begins_RC = (counts_RC.view(-1).cumsum(0) - counts_RC.view(-1)).int().view(counts_RC.shape)
    found: list[Tensor] = []
    for place, of in enumerate(lane.pooled, start=lane.requested):
        begins = begins_RC[:, place] if of.rank is None else begins_RC[of.rank, place].view(1)
        bags = torch.arange(of.features * count, dtype=torch.int32)
        found.append((bags[:, None] + begins).view(-1))
    return torch.cat(found)


class ReceivedBags:
    """The tail of the message of one rank.

    Attributes:
        count: Samples of that rank.
        lengths: int32, lengths of all its bags that this rank pools, per pooled category; empty for the others.
        weights: float32, weights of their ids, or None.
    """

    def __init__(self, lane: Lane, rank: int, told: int, ids: int, tail: Tensor) -> None:
        self.count, weighted = _count_and_weighted(told)
        sizes = vector_counts(lane, rank, self.count)
        numbers = tail.view(torch.int32)
        self.lengths = torch.split(numbers[: sum(sizes)], sizes)
        weights = numbers[sum(sizes) : sum(sizes) + ids]
        self.weights = weights.view(torch.float32) if weighted else None


def told_of(sent: Sequence[SentBags | None]) -> int:
    """What a rank tells every rank beside its counts: its number of samples, and whether ids have weights."""
    bags = [one for one in sent if one is not None]
    return 2 * bags[0].count + int(bags[0].weighted) if bags else 0


def tail_words(lane: Lane, rank: int, told: int, ids: int) -> int:
    """Number of 64-bit words of the tail of a message to a rank with this many ids of pooled categories."""
    if not lane.pooled:
        return 0
    count, weighted = _count_and_weighted(told)
    return (sum(vector_counts(lane, rank, count)) + weighted * ids + 1) // 2


@dataclass(frozen=True, eq=False)
class Pool:
    """Adjacent categories of equal dim that a rank pools.

    Attributes:
        places: Positions of the categories in the collection.
        bags: All their bags over the rank's distinct rows, as one feature.
    """

    places: range
    bags: Bags

    def pool(self, rows: Tensor, vectors: Tensor) -> None:
        """Pool rows into vectors; both flat float32."""
        recover(rows, self.bags, vectors.view(self.bags.count, self.bags.width))

    def spread(self, gradient: Tensor, rows: Tensor) -> None:
        """The backward of `pool`: set the gradient of every row."""
        recover_backward(gradient.view(self.bags.count, self.bags.width), self.bags, rows)


def vectors_of(
    rows: Unique,
    lane: Lane,
    rank: int,
    received: Sequence[ReceivedBags],
    ids_RC: Tensor,
    *,
    back: bool,
) -> tuple[Unique, Message]:
    """What an owner sends: distinct rows of requested categories, then vectors of pooled ones.

    Args:
        rows: Distinct rows of all categories of the lane.
        lane: The lane.
        rank: This rank.
        received: The tail of every rank; none if the lane has no pooled categories.
        ids_RC: int32 [R, C], received ids.
        back: Whether this is for the message of gradients, which every rank sends for rows that every rank keeps. Their
            values are sent to this rank only.

    Returns:
        `counts` of rows and vectors per category, and `inverse`, the row or vector at each place of the message, without ids;
        and the layout of the message.
    """
    owned, requested = lane.owned, lane.requested
    counts_R = [of.count for of in received] or [0] * len(ids_RC)
    sizes_RC = ids_RC.clone()
    if not back:
        sizes_RC[:, owned:requested] *= (torch.arange(len(ids_RC)) == rank)[:, None]
    for sender, count in enumerate(counts_R):
        sizes_RC[sender, requested:] = torch.tensor(
            vector_counts(lane, rank, count), dtype=torch.int32
        )
    vectors_P: list[int] = sizes_RC[:, requested:].sum(dim=0).numpy().tolist()
    counts = rows.counts.clone()
    counts[requested:] = sizes_RC[:, requested:].sum(dim=0)
    first = int(counts[:requested].sum())
    nexts = [first + vectors for vectors in accumulate(vectors_P[:-1], initial=0)]
    inverse: list[Tensor] = []
    begin = 0
    sizes_listed: list[list[int]] = sizes_RC.numpy().tolist()
    for mine, sizes in zip(ids_RC.numpy().tolist(), sizes_listed, strict=True):
        inverse.append(rows.inverse[begin : begin + sum(sizes[:requested])])
        begin += sum(mine)
        for place, size in enumerate(sizes[requested:]):
            inverse.append(torch.arange(nexts[place], nexts[place] + size, dtype=torch.int32))
            nexts[place] += size
    return Unique(rows.ids[:0], counts, torch.cat(inverse)), Message(sizes_RC.view(-1), lane.dims)


def pools_of(
    rows: Unique, lane: Lane, received: Sequence[ReceivedBags], ids_RC: Tensor
) -> list[Pool]:
    """The pools of an owner, in the order of categories; arguments as for `vectors_of`."""
    weighted = any(of.weights is not None for of in received)
    begins_RC = (ids_RC.view(-1).cumsum(0) - ids_RC.view(-1)).view(ids_RC.shape)
    firsts = [0, *accumulate(rows.counts_listed)]
    pools: list[Pool] = []
    for run in _runs(lane):
        combined: list[Tensor] = []
        lengths: list[Tensor] = []
        weights: list[Tensor] = []
        for place in run:
            for sender, of in enumerate(received):
                begin, count = int(begins_RC[sender, place]), int(ids_RC[sender, place])
                combined.append(rows.inverse[begin : begin + count])
                lengths.append(of.lengths[place - lane.requested])
                if of.weights is None:
                    weights.append(torch.ones(count if weighted else 0))
                else:
                    before = int(ids_RC[sender, lane.requested : place].sum())
                    weights.append(of.weights[before : before + count])
        lengths_N = torch.cat(lengths)
        offsets = torch.zeros(len(lengths_N) + 1, dtype=torch.int64)
        torch.cumsum(lengths_N, 0, out=offsets[1:])
        dims = lane.dims[run.start : run.stop]
        pools.append(
            Pool(
                lane.places[run.start : run.stop],
                Bags(
                    Message(rows.counts[run.start : run.stop], dims),
                    torch.cat(combined) - firsts[run.start],
                    offsets,
                    torch.cat(weights) if weighted else None,
                    [RecoveredFeature(dims[0], 0, False)],
                    len(lengths_N),
                    dims[0],
                ),
            )
        )
    return pools


def _runs(lane: Lane) -> list[range]:
    """Runs of adjacent pooled categories of equal dim."""
    begin, end = lane.requested, len(lane.categories)
    ends = [at for at in range(begin + 1, end) if lane.dims[at] != lane.dims[at - 1]]
    bounds = [begin, *ends, end]
    return [range(a, b) for a, b in pairwise(bounds)]


def _by_category(lane: Lane, by_feature: Tensor, dim: int) -> tuple[Tensor, ...]:
    return torch.split(by_feature, [of.features for of in lane.pooled], dim=dim)


def _features_of(lane: Lane, rank: int) -> Tensor:
    """Which features of the pooled categories a rank pools, bool [F]."""
    return torch.tensor([of.by(rank) for of in lane.pooled for _ in range(of.features)])


def _tail(lengths: Tensor, weights: Tensor) -> Tensor:
    numbers = [lengths.reshape(-1), weights.view(torch.int32)]
    odd = (len(numbers[0]) + len(numbers[1])) % 2
    return torch.cat([*numbers, torch.zeros(odd, dtype=torch.int32)]).view(torch.int64)


def _count_and_weighted(told: int) -> tuple[int, bool]:
    return told // 2, bool(told % 2)
