"""Requests sent and received by a rank in one lane, whole or split into chunks.

A *chunk* is a run of categories of a lane whose rows, and later their gradients, share one message. A category is never
split: a bag sums the rows of one category in the order of lookups, and an owner sums the gradients of a row in the order of
ranks. So results are bit-identical for every chunk size.

Shapes as in `rowmill.ops.exchange.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from rowmill.ops.exchange import Message, Unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sent:
    """The request that a rank sent in one lane, or its part in one chunk.

    Attributes:
        lane: The number of the lane.
        places: Positions of its categories in the collection.
        combined: int32 [N], the row of every lookup in the returned message, or -1.
        message: Layout of the returned rows.
        combined_back: As `combined`, in the message of gradients; `combined` itself if no category is replicated.
        back: Layout of the message of gradients; `message` itself if no category is replicated.
        replicated: Positions within `places` of categories whose gradients go to every rank.
    """

    lane: int
    places: range
    combined: Tensor
    message: Message
    combined_back: Tensor
    back: Message
    replicated: range


@dataclass(frozen=True, eq=False)
class Owned:
    """The requests that a rank received in one lane, or their part in one chunk.

    Attributes:
        places: Positions of the categories in the collection.
        unique: Distinct requested rows.
        times: int32 [U], number of ranks that request each row.
        vectors: The distinct rows and pooled vectors to send; `unique` itself if all categories are requested from owners.
        message: Layout of the vectors to send.
        vectors_back: As `vectors`, in the message of gradients; `vectors` itself if no category is replicated.
        back: Layout of the message of gradients; `message` itself if no category is replicated.
    """

    places: range
    unique: Unique
    times: Tensor
    vectors: Unique
    message: Message
    vectors_back: Unique
    back: Message


def floats_by_category(message: Message) -> Tensor:
    """int64 [C]: floats of a message per category, summed over ranks."""
    counts_RC = message.counts.view(-1, len(message.dims)).long()
    return counts_RC.sum(dim=0) * torch.tensor(message.dims)


def runs(sizes: Sequence[int], most: int) -> list[range]:
    """Group adjacent sizes whose sum is at most `most`; a larger size is a group by itself.

    Examples:
        >>> runs([3, 0, 4, 9, 1], 7)
        [range(0, 3), range(3, 4), range(4, 5)]
    """
    ends: list[int] = []
    total = 0
    for place, size in enumerate(sizes):
        if total > 0 and total + size > most:
            ends.append(place)
            total = 0
        total += size
    return [range(a, b) for a, b in zip([0, *ends], [*ends, len(sizes)], strict=True)]


def cut_sent(whole: Sent, offsets: Sequence[int], chunks: Sequence[range]) -> list[Sent]:
    """Split the request that a rank sent in a lane into chunks.

    Args:
        whole: The request.
        offsets: C + 1 offsets of the categories in its lookups.
        chunks: Ranges of categories, numbered from 0 within the lane.
    """
    combined, messages = _cut_combined(whole.combined, whole.message, offsets, chunks)
    combined_back, back = combined, messages
    if whole.back is not whole.message:
        combined_back, back = _cut_combined(whole.combined_back, whole.back, offsets, chunks)
    return [
        Sent(
            whole.lane,
            whole.places[chunk.start : chunk.stop],
            *(combined[number], messages[number], combined_back[number], back[number]),
            _within(whole.replicated, chunk),
        )
        for number, chunk in enumerate(chunks)
    ]


def cut_owned(whole: Owned, chunks: Sequence[range]) -> list[Owned]:
    """Split the requests that a rank received in a lane into chunks; `chunks` as in `cut_sent`."""
    unique = whole.unique
    vectors, messages = _cut_vectors(whole.vectors, whole.message, chunks)
    vectors_back, back = vectors, messages
    if whole.back is not whole.message:
        vectors_back, back = _cut_vectors(whole.vectors_back, whole.back, chunks)
    firsts = [0, *accumulate(unique.counts_listed)]
    out: list[Owned] = []
    for number, chunk in enumerate(chunks):
        places = slice(chunk.start, chunk.stop)
        rows = slice(firsts[chunk.start], firsts[chunk.stop])
        # The rows at the places of messages are those of `vectors`, so the distinct rows need no inverse.
        mine = Unique(unique.ids[rows], unique.counts[places], unique.inverse[:0])
        of_chunk = vectors[number], messages[number], vectors_back[number], back[number]
        out.append(Owned(whole.places[places], mine, whole.times[rows], *of_chunk))
    return out


def _cut_combined(
    combined: Tensor, message: Message, offsets: Sequence[int], chunks: Sequence[range]
) -> tuple[list[Tensor], list[Message]]:
    """Per chunk, the rows of its lookups in its message, and the message's layout."""
    dims = message.dims
    counts_RC = message.counts.view(-1, len(dims))
    parts = [counts_RC[:, chunk.start : chunk.stop].contiguous() for chunk in chunks]
    # Rows of one rank and category are adjacent in both messages, so they move by the same distance.
    moved_RC = _begins(counts_RC) - torch.cat([_begins(part) for part in parts], dim=1)
    moved_W = moved_RC.view(-1).repeat_interleave(counts_RC.view(-1))
    if len(moved_W) > 0:
        moved_N = moved_W[combined.clamp(min=0)]
        combined = torch.where(combined < 0, combined, combined - moved_N)
    return (
        [combined[offsets[chunk.start] : offsets[chunk.stop]] for chunk in chunks],
        [
            Message(part.view(-1), dims[chunk.start : chunk.stop])
            for chunk, part in zip(chunks, parts, strict=True)
        ],
    )


def _cut_vectors(
    vectors: Unique, message: Message, chunks: Sequence[range]
) -> tuple[list[Unique], list[Message]]:
    """Per chunk, the vectors at the places of its message, and the message's layout."""
    dims = message.dims
    counts_RC = message.counts.view(-1, len(dims))
    begins_RC = _begins(counts_RC)
    ends_RC = begins_RC + counts_RC
    firsts = [0, *accumulate(vectors.counts_listed)]
    cut: list[Unique] = []
    messages: list[Message] = []
    for chunk in chunks:
        places = slice(chunk.start, chunk.stop)
        inverse = torch.cat(
            [
                vectors.inverse[int(begins[chunk.start]) : int(ends[chunk.stop - 1])]
                for begins, ends in zip(begins_RC, ends_RC, strict=True)
            ]
        )
        cut.append(Unique(vectors.ids[:0], vectors.counts[places], inverse - firsts[chunk.start]))
        messages.append(Message(counts_RC[:, places].contiguous().view(-1), dims[places]))
    return cut, messages


def _within(part: range, chunk: range) -> range:
    """The positions of `part` within a chunk."""
    begin, end = max(part.start, chunk.start), min(part.stop, chunk.stop)
    return range(begin - chunk.start, max(begin, end) - chunk.start)


def _begins(counts_RC: Tensor) -> Tensor:
    """int32 [R, C]: index of the first row of every rank and category in a message with these counts."""
    flat = counts_RC.reshape(-1)
    return (flat.cumsum(0) - flat).int().view(counts_RC.shape)
