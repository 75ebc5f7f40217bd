"""Row cache: rows that no step changes are kept on the rank that looks them up, while coming batches use them.

The policy is Bagpipe's (Section 3 of its paper): the ids of the next batches are known, so a row is kept only if one of them
uses it, and evicted after its last use among them. Cached rows are neither requested from owners nor sent.

Invariants:

- Rows that a run trains are never cached: an update follows each use, so a cached value would always be stale.
- Caching is decided when ids are sent, and rows are moved when they are pooled, both in the order of batches. So the last
  read of a slot precedes its reuse for another row.

Shapes: C categories of the collection, U distinct ids of a batch, S distinct ids of a batch and the cache together.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import torch

from rowmill.distributed._exchange.requests import Lookups
from rowmill.errors import InvalidInput
from rowmill.ops.exchange import Bags, Message, Unique, combine, segment_unique
from rowmill.size import check_int, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rowmill.distributed._exchange.chunk import Sent
    from rowmill.distributed._exchange.plan import LookedUp

_T = TypeVar("_T")

AHEAD_MAX = 63
"""Largest number of coming batches that the policy considers."""


@dataclass(frozen=True)
class RowCache:
    """Settings of a pipeline's row cache: in evaluation it holds all tables, in training only those of read-only stores.

    Attributes:
        ahead: Number of coming batches, 1 to 63: a row is kept if one of them uses it.
        memory: Memory for rows, divided equally among the distinct dims of tables. Rows that are used sooner have priority.
        device: Device of the cache and of pooling: "cpu", or a GPU such as "cuda".
    """

    ahead: int = 4
    memory: int | str = "64MiB"
    device: str = "cpu"

    def check(self) -> None:
        """Raise `InvalidInput` if a setting is invalid."""
        check_int(self.ahead, "ahead of the row cache", 1, AHEAD_MAX)
        parse_size(self.memory, name="memory of the row cache")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise InvalidInput(
                f'device of the row cache must be "cpu" or a GPU of this machine such as "cuda", got {self.device!r}: '
                f"{str(error).splitlines()[0]}"
            ) from error


@dataclass
class CacheUse:
    """Statistics of a pipeline's row cache since its creation.

    Attributes:
        rows: Number of distinct rows per batch, summed over batches, of tables that may be cached.
        hits: Number of these rows that were in the cache.
        bytes_saved: Bytes of the weights of hits, which owners neither read nor sent.
        held_max: Largest number of rows cached at a time.
    """

    rows: int = 0
    hits: int = 0
    bytes_saved: int = 0
    held_max: int = 0


def with_next(batches: Iterator[_T], count: int) -> Iterator[tuple[_T, list[_T]]]:
    """Yield each batch with the next `count` batches, fewer at the end. An error of `batches` is raised in its position.

    Examples:
        >>> list(with_next(iter("abc"), 1))
        [('a', ['b']), ('b', ['c']), ('c', [])]
    """
    window: deque[_T] = deque()
    failure: Exception | None = None
    ended = False
    while True:
        while not ended and len(window) <= count:
            try:
                window.append(next(batches))
            except StopIteration:
                ended = True
            except Exception as error:
                ended, failure = True, error
        if not window:
            break
        yield window.popleft(), list(window)
    if failure is not None:
        raise failure


class Reads:
    """The cache's plan for one batch: its cached rows, its missing rows, and the missing rows that will be cached.

    Attributes:
        missing: Per lane, the distinct ids to request from owners.
        hits: Per category, the slots of its cached rows.
        saved: Per category, the positions among its missing rows of those that will be cached, and their slots.
    """

    def __init__(
        self,
        held: HeldRows,
        number: int,
        looked: LookedUp,
        slots: Sequence[Tensor],
        saved: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        self.held = held
        self.number = number
        self.unique = looked.unique
        self.rows: list[Tensor] = []
        """Per category, the cached rows; set by `HeldRows.begin`."""
        self.slots = slots
        self.saved = saved
        self.hits = [slots_U[slots_U >= 0] for slots_U in slots]
        self.missing: list[Lookups] = []
        self._firsts: list[int] = []
        first = 0
        for one in looked.unique:
            of_lane = one.by_category()
            self._firsts.append(first)
            ids = [of[slots[first + n] < 0] for n, of in enumerate(of_lane)]
            ends = [0, *accumulate(map(len, ids))]
            self.missing.append(Lookups(torch.cat(ids), ends, [None] * len(ids)))
            first += len(ids)

    def bags(self, sent: Sent, bags: Bags, lookups: slice) -> tuple[Bags, Bags]:
        """Bags over received rows followed by cached rows, and bags over received rows only, for gradients.

        Args:
            sent: The request of the missing ids.
            bags: The bags of these categories; their `combined` is replaced.
            lookups: The range of these lookups within the lane.
        """
        unique, places = self.unique[sent.lane], sent.places
        slots_U = torch.cat([self.slots[place] for place in places])
        hit_U = slots_U >= 0
        alone_U = torch.full((len(slots_U),), -1, dtype=torch.int32)
        missing = int((~hit_U).sum())
        # After the rows come vectors of bags that their owners pool, which are never cached.
        alone_U[~hit_U], vectors = sent.combined[:missing], sent.combined[missing:]
        back_U = torch.full_like(alone_U, -1)
        back_U[~hit_U], vectors_back = sent.combined_back[:missing], sent.combined_back[missing:]
        counts = torch.tensor([len(self.hits[place]) for place in places], dtype=torch.int32)
        kept_U = int(sent.message.counts.sum()) - 1 + hit_U.cumsum(0).int()
        all_U = torch.where(hit_U, kept_U, alone_U)
        inverse = unique.inverse[lookups]
        before = range(self._firsts[sent.lane], places.start)
        first = sum(len(self.slots[place]) for place in before)
        inverse = torch.where(inverse < 0, inverse, inverse - first)
        message = Message(torch.cat([sent.message.counts, counts]), sent.message.dims)
        return (
            replace(bags, message=message, combined=torch.cat([combine(inverse, all_U), vectors])),
            replace(
                bags,
                message=sent.back,
                combined=torch.cat([combine(inverse, back_U), vectors_back]),
            ),
        )


class HeldRows:
    """The cached rows of a run of batches.

    Args:
        cache: The settings.
        dims: The dim of every category.
        kept: Per category, whether its rows may be cached.
        steps: Returns the number of optimizer steps of the cached tables, to detect training.
        use: Statistics, updated.
    """

    def __init__(
        self,
        cache: RowCache,
        dims: Sequence[int],
        kept: Sequence[bool],
        steps: Callable[[], int],
        use: CacheUse,
    ) -> None:
        self.ahead = cache.ahead
        self._dims, self._kept, self._use = dims, kept, use
        widths = sorted({dim for dim, may in zip(dims, kept, strict=True) if may})
        share = parse_size(cache.memory) // max(len(widths), 1)
        self._rows_max = {dim: share // (4 * dim) for dim in widths}
        self.device = torch.device(cache.device)
        # Allocated as needed, because tables seldom fill the memory.
        self._values = {dim: torch.empty(0, dim, device=self.device) for dim in widths}
        self._free = {dim: torch.empty(0, dtype=torch.int64) for dim in widths}
        self._slots_made = dict.fromkeys(widths, 0)
        self._ids = [torch.empty(0, dtype=torch.int64) for _ in dims]
        self._slots = [torch.empty(0, dtype=torch.int64) for _ in dims]
        self._steps, self._steps_before = steps, steps()
        self._planned = 0
        self._moved = 0

    # Where ids are sent.

    def plan(self, looked: LookedUp, coming: Sequence[LookedUp]) -> Reads:
        """Decide which rows of a batch are cached, given the next batches."""
        mine = looked.distinct
        both = [
            torch.cat([held, ids]) for held, ids in zip(self._ids, self._may(mine), strict=True)
        ]
        joined = _unique(both)
        known = joined.by_category()
        firsts = _begins(joined.counts)
        next_use_S = self._next_use(known, coming)
        # `known` lists cached ids first in each category, so the position of a hit is below the number of cached ids.
        lookups = torch.split(joined.inverse, [len(ids) for ids in both])
        place_of = [
            inverse[len(held) :].long() - first
            for inverse, held, first in zip(lookups, self._ids, firsts, strict=True)
        ]
        keeps = self._keeps(torch.split(next_use_S, [len(ids) for ids in known]))
        slots: list[Tensor] = []
        saved: list[tuple[Tensor, Tensor]] = []
        for c, (dim, may) in enumerate(zip(self._dims, self._kept, strict=True)):
            held, place_U = len(self._ids[c]), place_of[c]
            slots_U = torch.full((len(mine[c]),), -1, dtype=torch.int64)
            slots.append(slots_U)
            if not may:
                saved.append((place_U, place_U))
                continue
            hit_U = place_U < held
            slots_U[hit_U] = self._slots[c][place_U[hit_U]]
            self._use.rows += len(place_U)
            self._use.hits += int(hit_U.sum())
            self._use.bytes_saved += 4 * dim * int(hit_U.sum())
            keep_S = keeps[c]
            stays = keep_S[:held]
            # An evicted slot is free at once: `begin` reads its row for this batch before `complete` overwrites it.
            self._free[dim] = torch.cat([self._free[dim], self._slots[c][~stays]])
            self._ids[c], self._slots[c] = self._ids[c][stays], self._slots[c][stays]
            saved.append((torch.nonzero(keep_S[place_U[~hit_U]]).view(-1), place_U[:0]))
        for c, (places, _) in enumerate(saved):
            if len(places) > 0:
                fresh = self._take_slots(self._dims[c], len(places))
                saved[c] = places, fresh
                ids = mine[c][slots[c] < 0][places]
                self._ids[c] = torch.cat([self._ids[c], ids])
                self._slots[c] = torch.cat([self._slots[c], fresh])
        self._use.held_max = max(self._use.held_max, sum(map(len, self._slots)))
        self._planned += 1
        return Reads(self, self._planned, looked, slots, saved)

    def _may(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """Per category, the ids if its rows may be cached, else none."""
        return [of if may else of[:0] for of, may in zip(ids, self._kept, strict=True)]

    def _next_use(self, known: Sequence[Tensor], coming: Sequence[LookedUp]) -> Tensor:
        """int64 [S]: number of batches until each row's next use; `ahead` + 1 if no coming batch uses it."""
        never = self.ahead + 1
        # An invalid batch has no distinct ids; it ends the run.
        later = [self._may(looked.distinct) for looked in coming if looked.unique]
        segments = [torch.cat([ids, *(batch[c] for batch in later)]) for c, ids in enumerate(known)]
        found = _unique(segments)
        use = torch.full((len(found.ids),), never, dtype=torch.int64)
        ages = [
            torch.cat(
                [
                    torch.full((len(ids),), age, dtype=torch.int64)
                    for age, ids in enumerate([known[c], *(batch[c] for batch in later)])
                ]
            )
            for c in range(len(known))
        ]
        age_N = torch.cat(ages)
        age_N[age_N == 0] = never
        use.scatter_reduce_(0, found.inverse.long(), age_N, "amin")
        # The known ids were listed first, so they are the first distinct ids of their category.
        return torch.cat(
            [
                use[first : first + len(ids)]
                for first, ids in zip(_begins(found.counts), known, strict=True)
            ]
        )

    def _keeps(self, next_use: Sequence[Tensor]) -> list[Tensor]:
        """Which rows are cached: rows that are used again; if memory is short, those with the soonest use."""
        keeps = [use <= self.ahead for use in next_use]
        for dim, most in self._rows_max.items():
            places = [c for c, d in enumerate(self._dims) if d == dim]
            if sum(int(keeps[c].sum()) for c in places) <= most:
                continue
            order = torch.argsort(torch.cat([next_use[c] for c in places]), stable=True)
            first = torch.zeros(len(order), dtype=torch.bool)
            first[order[:most]] = True
            sizes = [len(keeps[c]) for c in places]
            for c, room in zip(places, torch.split(first, sizes), strict=True):
                keeps[c] = keeps[c] & room
        return keeps

    def _take_slots(self, dim: int, count: int) -> Tensor:
        free, made = self._free[dim], self._slots_made[dim]
        more = max(count - len(free), 0)
        self._slots_made[dim] = made + more
        assert self._slots_made[dim] <= self._rows_max[dim], (
            "more rows cached than the memory holds"
        )
        self._free[dim] = free[count:]
        return torch.cat([free[:count], torch.arange(made, made + more)])

    # Where rows are pooled.

    def begin(self, reads: Reads) -> InvalidInput | None:
        """Read the cached rows of a batch that is now pooled; returns an error if rows were trained or order is wrong."""
        if self._steps() != self._steps_before:
            return InvalidInput(
                "rows were trained since this run of evaluation began, so its row cache is stale: close() the run before a "
                "training step, or evaluate without a row cache"
            )
        if reads.number != self._moved + 1:
            return InvalidInput(
                f"batch {reads.number} of this run is looked up after batch {self._moved}: with a row cache each batch of "
                "Pipeline.run must be looked up once, in order"
            )
        self._moved = reads.number
        # Read all cached rows before `complete` writes received rows into slots.
        reads.rows = [
            self._values[dim][slots.to(self.device)].view(-1) if len(slots) > 0 else torch.empty(0)
            for dim, slots in zip(self._dims, reads.hits, strict=True)
        ]
        return None

    def complete(self, reads: Reads, sent: Sent, wire: Tensor) -> Tensor:
        """Concatenate received and cached rows of a batch, and copy received rows into the cache as planned."""
        wire = wire.to(self.device)
        begin, starts = 0, None
        for place, dim in zip(sent.places, sent.message.dims, strict=True):
            places, slots = reads.saved[place]
            asked = len(reads.slots[place]) - len(reads.hits[place])
            if len(places) > 0:
                starts = _row_starts(sent.message) if starts is None else starts
                rows = sent.combined[begin : begin + asked][places].long()
                floats = starts[rows][:, None] + torch.arange(dim)
                self._grow(dim)
                self._values[dim][slots.to(self.device)] = wire[floats.to(self.device)]
            begin += asked
        kept = [reads.rows[place] for place in sent.places if len(reads.rows[place]) > 0]
        return torch.cat([wire, *kept]) if kept else wire

    def _grow(self, dim: int) -> None:
        values, needed = self._values[dim], self._slots_made[dim]
        if len(values) < needed:
            rows = min(max(needed, 2 * len(values)), self._rows_max[dim])
            self._values[dim] = torch.empty(rows, dim, device=self.device)
            self._values[dim][: len(values)] = values


def _unique(segments: Sequence[Tensor]) -> Unique:
    """Distinct ids of every category."""
    offsets = [0]
    for ids in segments:
        offsets.append(offsets[-1] + len(ids))
    return segment_unique(torch.cat(list(segments)), offsets, [None] * len(segments))


def _begins(counts: Tensor) -> list[int]:
    """Exclusive prefix sum of counts: the first index of every category."""
    begins: list[int] = (counts.cumsum(0) - counts).numpy().tolist()
    return begins


def _row_starts(message: Message) -> Tensor:
    """int64 [W]: offset in floats of every row."""
    counts = message.counts.long()
    widths = torch.tensor(message.dims).repeat(len(counts) // len(message.dims))
    widths_W = widths.repeat_interleave(counts)
    return widths_W.cumsum(0) - widths_W


def on(bags: Bags, device: torch.device) -> Bags:
    """Copy bags to a device."""
    weights = None if bags.weights is None else bags.weights.to(device)
    message = Message(bags.message.counts.to(device), bags.message.dims)
    combined, offsets = bags.combined.to(device), bags.offsets.to(device)
    return Bags(message, combined, offsets, weights, bags.features, bags.count, bags.width)
