"""The requests of a forward: what a rank asks in a lane, and what it makes of the messages of other ranks.

Shapes as in `rowmill.ops.exchange.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from rowmill.distributed._exchange.chunk import Owned, Sent
from rowmill.distributed._exchange.pooled import (
    BagRequest,
    Pool,
    ReceivedBags,
    SentBags,
    pools_of,
    tail_words,
    vector_counts,
    vector_positions,
    vectors_of,
)
from rowmill.ops.exchange import Message, combine, owner_unique, rank_sort, segment_unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rowmill.distributed.strategy import Lane


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of a rank in one lane: ids ordered by category, C + 1 offsets of categories, and a padding id for each."""

    ids: Tensor
    offsets: list[int]
    paddings: list[int | None]


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one forward.

    Attributes:
        sent: Sent by this rank, per lane, or per chunk if any lane is large.
        owned: Received by this rank, per lane or chunk.
        pools: The bags that this rank pools, in the order of categories.
        forward: Name of the forward, for error messages.
    """

    sent: list[Sent]
    owned: list[Owned]
    pools: list[Pool]
    forward: str


class Asking:
    """What a rank asks in one lane.

    Attributes:
        sent: The request.
        offsets: C + 1 offsets of the categories in its lookups.
        bags: The bags of pooled categories, if there are any.
        counts_RC: int [R, C], ids per rank and category.
        keys: The message of ids to all ranks.
        keys_by_rank: Its words per rank.
    """

    def __init__(
        self, number: int, lane: Lane, asked: Lookups, bags: BagRequest | None, ranks: int
    ) -> None:
        unique = segment_unique(asked.ids, asked.offsets, asked.paddings)
        self.sort = rank_sort(unique, lane.categories, ranks)
        self.counts_RC = self.sort.counts.view(ranks, -1)
        self.bags = None if bags is None else SentBags(lane, bags, ranks)
        self.offsets = asked.offsets
        if self.bags is None:
            combined = combine(unique.inverse, self.sort.positions)
            self.keys, self.keys_by_rank = self.sort.ids, words_by_rank(self.counts_RC)
            self.sent = Sent(number, lane.places, combined, Message(self.sort.counts, lane.dims))
            return
        count, requested = self.bags.count, lane.requested
        vectors_RP = torch.tensor(
            [vector_counts(lane, rank, count) for rank in range(ranks)], dtype=torch.int32
        )
        rows_R = self.counts_RC.sum(dim=1)
        # In the message, the vectors of each rank follow its rows.
        vectors_R = vectors_RP.sum(dim=1)
        moved_W = (vectors_R.cumsum(0) - vectors_R).int().repeat_interleave(rows_R)
        moved_U = self.sort.positions + moved_W[self.sort.positions.long()]
        sizes_RC = torch.cat([self.counts_RC[:, :requested], vectors_RP], dim=1)
        message = Message(sizes_RC.view(-1), lane.dims)
        combined = torch.cat(
            [combine(unique.inverse, moved_U), vector_positions(lane, message, count)]
        )
        self.sent = Sent(number, lane.places, combined, message)
        lookups = [of.features * count * (ranks if of.rank is None else 1) for of in lane.pooled]
        rows = asked.offsets[: requested + 1]
        self.offsets = rows + [rows[-1] + end for end in accumulate(lookups)]
        ids_R = torch.split(self.sort.ids, words_by_rank(self.counts_RC))
        parts = list(zip(ids_R, self.bags.ids, self.bags.tails, strict=True))
        self.keys = torch.cat([part for of_rank in parts for part in of_rank])
        self.keys_by_rank = [sum(map(len, of_rank)) for of_rank in parts]
        self.counts_RC = torch.cat([self.counts_RC[:, :requested], self.bags.counts], dim=1)


@dataclass(frozen=True, eq=False)
class Received:
    """The messages of ids that all ranks sent to this rank in one lane.

    Attributes:
        ids: int64 [W], ordered by rank and category.
        counts: int32 [R * C], ids per rank and category.
        bags: Per rank, the tail of its message; none if the lane has no pooled categories.
    """

    ids: Tensor
    counts: Tensor
    bags: list[ReceivedBags]


def words_coming(lane: Lane, rank: int, counts_RC: Tensor, beside: Sequence[int]) -> list[int]:
    """Per rank, the words of its message of ids to `rank`.

    Args:
        lane: The lane.
        rank: This rank.
        counts_RC: Ids per rank and category.
        beside: What every rank told beside its counts.
    """
    ids_R: list[int] = counts_RC[:, lane.requested :].sum(dim=1).numpy().tolist()
    tails = [tail_words(lane, rank, *of_rank) for of_rank in zip(beside, ids_R, strict=True)]
    return [a + b for a, b in zip(words_by_rank(counts_RC), tails, strict=True)]


def received(
    lane: Lane, rank: int, keys: Tensor, counts_RC: Tensor, beside: Sequence[int]
) -> Received:
    """Split received messages into ids and tails; arguments as for `words_coming`."""
    counts = counts_RC.reshape(-1).int()
    if not lane.pooled:
        return Received(keys, counts, [])
    ids: list[Tensor] = []
    bags: list[ReceivedBags] = []
    messages = torch.split(keys, words_coming(lane, rank, counts_RC, beside))
    for message, mine, told in zip(messages, counts_RC, beside, strict=True):
        count, pooled = int(mine.sum()), int(mine[lane.requested :].sum())
        ids.append(message[:count])
        bags.append(ReceivedBags(lane, rank, told, pooled, message[count:]))
    return Received(torch.cat(ids), counts, bags)


def owned_by(lane: Lane, rank: int, ranks: int, asked: Received) -> tuple[Owned, list[Pool]]:
    """What a rank reads and sends in one lane, and the bags that it pools."""
    unique = owner_unique(asked.ids, asked.counts, len(lane.categories))
    if not lane.pooled:
        times = torch.bincount(unique.inverse, minlength=len(unique.ids)).int()
        return Owned(lane.places, unique, times, unique, Message(asked.counts, lane.dims)), []
    ids_RC = asked.counts.view(ranks, -1)
    # A rank sends an id of a bag as often as it occurs; it counts once per rank.
    asked_UR = torch.zeros(len(unique.ids), ranks, dtype=torch.bool)
    rank_W = torch.arange(ranks).repeat_interleave(ids_RC.sum(dim=1))
    asked_UR[unique.inverse.long(), rank_W] = True
    sizes_RC = ids_RC.clone()
    sizes_RC[:, lane.requested :] = torch.tensor(
        [vector_counts(lane, rank, of.count) for of in asked.bags], dtype=torch.int32
    )
    owned = Owned(
        lane.places,
        unique,
        asked_UR.sum(dim=1, dtype=torch.int32),
        vectors_of(unique, lane, rank, asked.bags, ids_RC),
        Message(sizes_RC.view(-1), lane.dims),
    )
    return owned, pools_of(unique, lane, asked.bags, ids_RC)


def words_by_rank(counts_RC: Tensor) -> list[int]:
    """Ids per rank."""
    words: list[int] = counts_RC.sum(dim=1).numpy().tolist()
    return words
