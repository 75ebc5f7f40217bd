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
from rowmill.ops.exchange import (
    Message,
    Unique,
    combine,
    owner_unique,
    rank_sort,
    segment_unique,
)

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


@dataclass(frozen=True)
class Position:
    """This rank, the number of ranks, and whether the forward is a training get."""

    rank: int
    ranks: int
    training: bool


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
        self,
        number: int,
        lane: Lane,
        asked: Lookups,
        bags: BagRequest | None,
        at: Position,
    ) -> None:
        unique = segment_unique(asked.ids, asked.offsets, asked.paddings)
        self.offsets = asked.offsets
        self.bags = None if bags is None else SentBags(lane, bags, at.ranks)
        if not lane.replicated and self.bags is None:
            self.sort = rank_sort(unique, lane.categories, at.ranks)
            self.counts_RC = self.sort.counts.view(at.ranks, -1)
            combined = combine(unique.inverse, self.sort.positions)
            message = Message(self.sort.counts, lane.dims)
            self.keys, self.keys_by_rank = self.sort.ids, words_by_rank(self.counts_RC)
            self.sent = Sent(number, lane.places, combined, message, combined, message, range(0))
            return
        owned, requested = lane.owned, lane.requested
        counts = unique.counts.clone()
        counts[owned:] = 0
        count = 0 if self.bags is None else self.bags.count
        self.sort = rank_sort(
            Unique(unique.ids[: int(counts.sum())], counts, unique.inverse[:0]),
            lane.categories,
            at.ranks,
        )
        vectors_RP = torch.zeros(at.ranks, len(lane.pooled), dtype=torch.int32)
        for rank in range(at.ranks):
            vectors_RP[rank] = torch.tensor(vector_counts(lane, rank, count), dtype=torch.int32)
        self._rows_RC = self.sort.counts.view(at.ranks, -1)[:, :owned]
        # Rows that every rank keeps are requested from this rank; in training, their gradients go to every rank.
        mine_R = torch.arange(at.ranks) == at.rank
        copies_RC = unique.counts[owned:requested].expand(at.ranks, -1)
        told_RC = copies_RC * (mine_R | at.training)[:, None]
        sizes_RC = torch.cat([self._rows_RC, copies_RC * mine_R[:, None], vectors_RP], dim=1)
        back_RC = torch.cat([self._rows_RC, told_RC, vectors_RP], dim=1)
        there = self._combined(lane, unique, sizes_RC, at.rank, count)
        back = (
            there if not lane.replicated else self._combined(lane, unique, back_RC, at.rank, count)
        )
        self.sent = Sent(number, lane.places, *there, *back, range(owned, requested))
        if lane.pooled:
            lookups = [
                of.features * count * (at.ranks if of.rank is None else 1) for of in lane.pooled
            ]
            rows = asked.offsets[: requested + 1]
            self.offsets = rows + [rows[-1] + end for end in accumulate(lookups)]
        copies = unique.ids[len(self.sort.ids) :]
        ids_R = torch.split(self.sort.ids, words_by_rank(self._rows_RC))
        parts = [
            [ids, copies if at.training or rank == at.rank else copies[:0]]
            for rank, ids in enumerate(ids_R)
        ]
        if self.bags is not None:
            for of_rank, pooled, tail in zip(parts, self.bags.ids, self.bags.tails, strict=True):
                of_rank += [pooled, tail]
        self.keys = torch.cat([part for of_rank in parts for part in of_rank])
        self.keys_by_rank = [sum(map(len, of_rank)) for of_rank in parts]
        pooled_RC = vectors_RP[:, :0] if self.bags is None else self.bags.counts
        self.counts_RC = torch.cat([self._rows_RC, told_RC, pooled_RC], dim=1)

    def _combined(
        self, lane: Lane, unique: Unique, sizes_RC: Tensor, rank: int, count: int
    ) -> tuple[Tensor, Message]:
        """The row or vector of every lookup in a message with these sizes, and the message's layout."""
        message = Message(sizes_RC.reshape(-1), lane.dims)
        # In the message, other rows and vectors of each rank follow those that it owns.
        more_R = sizes_RC[:, lane.owned :].sum(dim=1)
        moved_R = (more_R.cumsum(0) - more_R).int()
        moved_W = moved_R.repeat_interleave(self._rows_RC.sum(dim=1))
        positions = self.sort.positions
        owned_U = positions + moved_W[positions.long()]
        begin = int(sizes_RC[:rank].sum() + self._rows_RC[rank].sum())
        copies = len(unique.ids) - len(positions)
        copies_U = torch.arange(begin, begin + copies, dtype=torch.int32)
        combined = [combine(unique.inverse, torch.cat([owned_U, copies_U]))]
        if lane.pooled:
            combined.append(vector_positions(lane, message, count))
        return torch.cat(combined), message


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


def owned_by(lane: Lane, at: Position, asked: Received) -> tuple[Owned, list[Pool]]:
    """What a rank reads and sends in one lane, and the bags that it pools."""
    unique = owner_unique(asked.ids, asked.counts, len(lane.categories))
    if not lane.pooled and not lane.replicated:
        times = torch.bincount(unique.inverse, minlength=len(unique.ids)).int()
        message = Message(asked.counts, lane.dims)
        return Owned(lane.places, unique, times, unique, message, unique, message), []
    ids_RC = asked.counts.view(at.ranks, -1)
    # A rank sends an id of a bag as often as it occurs; it counts once per rank.
    asked_UR = torch.zeros(len(unique.ids), at.ranks, dtype=torch.bool)
    rank_W = torch.arange(at.ranks).repeat_interleave(ids_RC.sum(dim=1))
    asked_UR[unique.inverse.long(), rank_W] = True
    times = asked_UR.sum(dim=1, dtype=torch.int32)
    there = vectors_of(unique, lane, at.rank, asked.bags, ids_RC, back=False)
    back = there
    if lane.replicated:
        back = vectors_of(unique, lane, at.rank, asked.bags, ids_RC, back=True)
    pools = pools_of(unique, lane, asked.bags, ids_RC) if lane.pooled else []
    return Owned(lane.places, unique, times, *there, *back), pools


def copy_to_all(sent: Sent, rank: int, wire: Tensor) -> None:
    """Copy the gradients of rows that every rank keeps from the part of this rank to the parts of all others."""
    if len(sent.replicated) == 0:
        return
    counts_RC = sent.back.counts.view(-1, len(sent.back.dims)).long()
    floats_RC = counts_RC * torch.tensor(sent.back.dims)
    begins_RC = (floats_RC.view(-1).cumsum(0) - floats_RC.view(-1)).view(floats_RC.shape)
    begins: list[int] = begins_RC[:, sent.replicated.start].numpy().tolist()
    size = int(floats_RC[rank, sent.replicated.start : sent.replicated.stop].sum())
    for other, begin in enumerate(begins):
        if other != rank:
            wire[begin : begin + size] = wire[begins[rank] : begins[rank] + size]


def words_by_rank(counts_RC: Tensor) -> list[int]:
    """Ids per rank."""
    words: list[int] = counts_RC.sum(dim=1).numpy().tolist()
    return words
