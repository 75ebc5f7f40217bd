"""One exchange: ids to the ranks that own their rows, rows back, and later gradients the same way.

Before anything else every rank tells every other one how many ids of which category it will send, and that it is well: the
message of counts is the only one whose size nobody needs to be told. A rank that found its input wrong says so there, so
that all raise and none waits. Which rank owns what of a category, its owners learn from the counts; ids stay what they are.

Gradients have a group of their own, for counts of a rank that left a backward out must not meet them: in gloo a message of
another size than is expected ends the process. Where two ranks share two cores, the threads of that group cost 0.4 ms of a step.

Shapes as in `rowmill.ops.exchange.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from rowmill.distributed._exchange.buffers import Buffers
from rowmill.distributed._exchange.chunk import (
    Owned,
    Sent,
    cut_owned,
    cut_sent,
    floats_by_category,
    runs,
)
from rowmill.distributed._exchange.messages import Messages
from rowmill.distributed._exchange.traffic import Leg, Traffic
from rowmill.distributed.meter import Meter
from rowmill.distributed.ranks import raise_first, spell
from rowmill.errors import InvalidInput
from rowmill.ops.exchange import (
    Bags,
    Message,
    Sorted,
    combine,
    owner_unique,
    pack,
    rank_sort,
    recover_backward,
    segment_unique,
    unpack_add,
)
from rowmill.ops.exchange.owner_hash import hashed, states, unhashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rowmill.distributed._liveness.whereabouts import Call
    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.strategy import Lane

RowsOnWire = Literal["fp32", "bf16"]
"""How weights and gradients travel."""

_STATUS = 2
"""Words before the counts: how the rank is, and whether it trains."""

_FAILED, _WELL, _ENDED, _LARGE = range(4)
"""How a rank is: its input is wrong, it asks for rows, it has no more batches, it asks for more rows than go in one chunk."""


def check_rows_on_wire(rows: RowsOnWire) -> None:
    """Raise InvalidInput if rows cannot travel so."""
    if rows not in ("fp32", "bf16"):
        raise InvalidInput(f'rows_on_wire must be "fp32" or "bf16", got {rows!r}')


@dataclass(frozen=True, eq=False)
class Lookups:
    """What a rank looks up in one lane: ids category by category, where each begins, and what stands for nothing."""

    ids: Tensor
    offsets: list[int]
    paddings: list[int | None]


class Exchange:
    """The messages of a collection's lanes.

    Args:
        ranks: What carries ids and rows, and those of no other collection.
        back: What carries gradients; None: this exchange has none.
        of: Which forwards these are, in errors: nothing, or words behind their number.
        lanes: As they are.
        rows: How rows travel.
        chunk_bytes_max: Of a message.
        traffic: What counts them.
    """

    def __init__(
        self,
        ranks: Ranks,
        back: Ranks | None,
        of: str,
        lanes: Sequence[Lane],
        rows: RowsOnWire,
        chunk_bytes_max: int,
        traffic: Traffic | None = None,
    ) -> None:
        self.ranks = ranks
        self._back = back
        self._of = of
        self.lanes = lanes
        self.rows: RowsOnWire = rows
        self.chunk_bytes_max = chunk_bytes_max
        self.traffic = Traffic() if traffic is None else traffic
        self.buffers = Buffers()
        self.meter = Meter()

    def beside(self) -> Exchange:
        """The same messages in a group of their own, for another thread; traffic is counted together. A collective."""
        ranks, of = self.ranks.beside(), f" ahead{self._of}"
        return Exchange(ranks, None, of, self.lanes, self.rows, self.chunk_bytes_max, self.traffic)

    # Forward.

    def ask(
        self, lookups: Sequence[Lookups] | Exception, *, training: bool
    ) -> tuple[list[Sent], list[Owned], str]:
        """Send ids to their owners, and learn what this rank is asked for.

        Args:
            lookups: Of every lane, or why this rank has none.
            training: Whether rows are born and will be updated; ranks must agree.

        Returns:
            What this rank asked for and is asked for: lane by lane, or chunk by chunk where a lane is large; and which
            forward it is, in errors.

        Raises:
            InvalidInput: On every rank, if the input of one is wrong.
        """
        call = self._begin()
        if isinstance(lookups, Exception):
            self._tell_counts(call, [], _FAILED, lookups, training)
            raise AssertionError("a rank that is not well raises")
        sorts: list[Sorted] = []
        sent: list[Sent] = []
        for number, (lane, asked) in enumerate(zip(self.lanes, lookups, strict=True)):
            unique = segment_unique(asked.ids, asked.offsets, asked.paddings)
            sorts.append(rank_sort(unique, lane.categories, self.ranks.count))
            combined = combine(unique.inverse, sorts[-1].positions)
            sent.append(Sent(number, lane.places, combined, Message(sorts[-1].counts, lane.dims)))
        # No rank gets more than a chunk from all others if none of them sends it more than a share of one.
        share = self._chunk_floats() // self.ranks.count
        large = any(max(asked.message.floats_by_rank) > share for asked in sent)
        told, statuses = self._tell_counts(call, sorts, _LARGE if large else _WELL, None, training)
        keys, counts = self._send_keys(call, sorts, told)
        owned: list[Owned] = []
        for lane, ids, numbers in zip(self.lanes, keys, counts, strict=True):
            unique = owner_unique(ids, numbers, len(lane.categories))
            times = torch.bincount(unique.inverse, minlength=len(unique.ids)).int()
            owned.append(Owned(lane.places, unique, Message(numbers, lane.dims), times))
        if _LARGE not in statuses:
            return sent, owned, call.name
        chunks = self._agree_on_chunks(call, sent, owned)
        offsets = [asked.offsets for asked in lookups]
        return (
            [part for of in zip(sent, offsets, chunks, strict=True) for part in cut_sent(*of)],
            [part for of in zip(owned, chunks, strict=True) for part in cut_owned(*of)],
            call.name,
        )

    def end(self, *, training: bool) -> None:
        """Say in place of ids that this rank has no more batches.

        Raises:
            InvalidInput: On every rank, if another one has, or its input is wrong.
        """
        call = self._begin()
        self._tell_counts(call, [], _ENDED, None, training)

    def send_rows(
        self,
        rows: Sequence[Tensor] | Exception,
        sent: Sequence[Sent],
        owned: Sequence[Owned],
        forward: str,
    ) -> Iterator[Tensor]:
        """Rows to the ranks that asked, the first of them on their way when this returns.

        Args:
            rows: Of every chunk the distinct rows, flat; or why this rank could not read them. They stay as they are until
                all has come.
            sent: What this rank asked for.
            owned: What it is asked for.
            forward: Which one this is of, in errors.

        Returns:
            Of every chunk what comes back, flat float32, until the next is asked for; raises on every rank if one could
            not read.
        """
        failure = rows if isinstance(rows, Exception) else None
        call = self.ranks.whereabouts.begin("rows", self._of, f"the rows of {forward}")
        well = torch.tensor([failure is None], dtype=torch.int64)
        heard = torch.empty(self.ranks.count, dtype=torch.int64)
        status = dist.all_gather_into_tensor(heard, well, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", status)
        self.traffic.add("counts", 8 * (self.ranks.count - 1))

        def pack_rows(number: int, wire: Tensor) -> None:
            # Who could not read its rows sends what nobody will look at: others wait for as many bytes.
            if not isinstance(rows, Exception):
                pack(rows[number], owned[number].unique, owned[number].message, wire)

        messages = self._messages(self.ranks, call, "rows", sent, owned, pack_rows, back=False)

        def arrivals() -> Iterator[Tensor]:
            for number, came in enumerate(messages.arrivals()):
                if number == 0:
                    with self.meter.waiting("counts"):
                        self.ranks.wait(status, call)
                    if not bool(heard.all()):
                        messages.drop()
                        self._raise_together(failure)
                yield came

        return arrivals()

    # Backward.

    def send_gradients(
        self,
        gradient: Tensor,
        bags: Sequence[Bags],
        sent: Sequence[Sent],
        owned: Sequence[Owned],
        forward: str,
    ) -> Callable[[Sequence[Tensor]], None]:
        """Gradients of the rows that came back to their owners, the first of them on their way when this returns.

        Args:
            gradient: float32 or bfloat16 [B, width], of the pooled vectors.
            bags: How rows became pooled vectors, chunk by chunk.
            sent: What this rank asked for.
            owned: What it was asked for.
            forward: Which one this is the backward of, in errors.

        Returns:
            Waits for them, and adds them up: for every chunk to its distinct rows, flat float32. Ranks are added in their
            order, so equal gradients give equal bits.
        """

        def pack_gradients(number: int, wire: Tensor) -> None:
            recover_backward(gradient, bags[number], wire)

        assert self._back is not None, "gradients go back in the order of the loop"
        call = self._back.whereabouts.begin("backward", self._of, f"the backward of {forward}")
        messages = self._messages(
            self._back, call, "gradients", sent, owned, pack_gradients, back=True
        )

        def add_to(sums: Sequence[Tensor]) -> None:
            for wire, mine, rows in zip(messages.arrivals(), owned, sums, strict=True):
                unpack_add(wire, mine.unique, mine.message, rows)

        return add_to

    # Messages.

    def _begin(self) -> Call:
        return self.ranks.whereabouts.begin("forward", self._of)

    def _tell_counts(
        self,
        call: Call,
        sorts: Sequence[Sorted],
        status: int,
        failure: Exception | None,
        training: bool,
    ) -> tuple[Tensor, list[int]]:
        """Exchange counts: [R, counts of a rank], lane after lane; and how every rank is."""
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        out = torch.zeros(ranks, _STATUS + sum(widths), dtype=torch.int64)
        out[:, :_STATUS] = torch.tensor([status, training])
        if sorts:
            counts = [sort.counts.view(ranks, -1) for sort in sorts]
            told = [
                numbers.sum(dim=1, keepdim=True) if lane.hashed else numbers
                for lane, numbers in zip(self.lanes, counts, strict=True)
            ]
            out[:, _STATUS:] = torch.cat(told, dim=1)
        heard = torch.empty_like(out)
        work = dist.all_to_all_single(heard, out, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", work)
        self.traffic.add("counts", out[0].nbytes * (ranks - 1))
        with self.meter.waiting("counts"):
            self.ranks.wait(work, call)
        statuses, trains = [int(status) for status in heard[:, 0]], heard[:, 1]
        if _FAILED in statuses:
            self._raise_together(failure)
        asking = [rank for rank, status in enumerate(statuses) if status != _ENDED]
        if asking and len(asking) < ranks:
            ended, goes_on = statuses.index(_ENDED), asking[0]
            raise InvalidInput(
                f"rank {ended} has no more batches, but rank {goes_on} has: bring as many on every rank, "
                "without samples if need be"
            )
        if trains.min() != trains.max():
            modes = [int(mode) for mode in trains]
            raise InvalidInput(
                f"all ranks must train or none: in {call} rank {modes.index(1)} trains and rank {modes.index(0)} evaluates; "
                "call train() or eval() on every rank, and forward as often after each"
            )
        return heard[:, _STATUS:], statuses

    def _send_keys(
        self, call: Call, sorts: Sequence[Sorted], told: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Ids of every lane to their owners; with them the counts by rank and category."""
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        heard = [part.contiguous() for part in torch.split(told, widths, dim=1)]
        to = [_sums(sort.counts.view(ranks, -1)) for sort in sorts]
        come = [_sums(counts) for counts in heard]
        if not any(lane.hashed for lane in self.lanes):
            keys = self._send_ids(call, [sort.ids for sort in sorts], to, come)
            return keys, [counts.view(-1).int() for counts in heard]
        categories = [
            _categories(sort.counts, len(lane.categories)) for lane, sort in self._zip(sorts)
        ]
        hashes = [
            hashed(sort.ids, states(lane.categories)[category.long()])
            for (lane, sort), category in zip(self._zip(sorts), categories, strict=True)
        ]
        received = self._send_ids(call, hashes, to, come)
        category_of = self._send_ids(call, categories, to, come)
        keys: list[Tensor] = []
        counts: list[Tensor] = []
        for lane, hashes_W, category_W, sizes in zip(
            self.lanes, received, category_of, come, strict=True
        ):
            numbers_W = category_W.long()
            rank_W = torch.arange(ranks).repeat_interleave(torch.tensor(sizes))
            keys.append(unhashed(hashes_W, states(lane.categories)[numbers_W]))
            blocks = rank_W * len(lane.categories) + numbers_W
            counts.append(torch.bincount(blocks, minlength=ranks * len(lane.categories)).int())
        return keys, counts

    def _zip(self, sorts: Sequence[Sorted]) -> list[tuple[Lane, Sorted]]:
        return list(zip(self.lanes, sorts, strict=True))

    def _chunk_floats(self) -> int:
        """How many floats go in a chunk."""
        return self.chunk_bytes_max // (2 if self.rows == "bf16" else 4)

    def _agree_on_chunks(
        self, call: Call, sent: Sequence[Sent], owned: Sequence[Owned]
    ) -> list[list[range]]:
        """Where lanes are cut: runs of their categories, the same on all ranks.

        No rank knows how large a category is elsewhere, so all tell; only in steps in which a message is large.
        """
        most = [
            torch.maximum(floats_by_category(asked.message), floats_by_category(mine.message))
            for asked, mine in zip(sent, owned, strict=True)
        ]
        mine = torch.cat(most)
        heard = torch.empty(self.ranks.count * len(mine), dtype=torch.int64)
        work = dist.all_gather_into_tensor(heard, mine, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", work)
        self.traffic.add("counts", mine.nbytes * (self.ranks.count - 1))
        with self.meter.waiting("counts"):
            self.ranks.wait(work, call)
        greatest = heard.view(self.ranks.count, -1).amax(dim=0)
        by_lane = torch.split(greatest, [len(lane.categories) for lane in self.lanes])
        return [runs(sizes.numpy().tolist(), self._chunk_floats()) for sizes in by_lane]

    def _messages(
        self,
        ranks: Ranks,
        call: Call,
        leg: Leg,
        sent: Sequence[Sent],
        owned: Sequence[Owned],
        pack: Callable[[int, Tensor], None],
        *,
        back: bool,
    ) -> Messages:
        """A message for each chunk, from owners to those who asked, or `back`."""
        asked = [one.message.floats_by_rank for one in sent]
        mine = [one.message.floats_by_rank for one in owned]
        to, come = (asked, mine) if back else (mine, asked)
        lanes = [one.lane for one in sent]
        return Messages(self, ranks, call, leg, lanes, to, come, pack)

    def _send_ids(
        self,
        call: Call,
        outs: Sequence[Tensor],
        to: Sequence[list[int]],
        come: Sequence[list[int]],
    ) -> list[Tensor]:
        """One message per lane, all of them on their way at once."""
        waits: list[tuple[Any, Tensor]] = []
        for out, sizes, sizes_back in zip(outs, to, come, strict=True):
            back = out.new_empty(sum(sizes_back))
            work = dist.all_to_all_single(
                back, out, sizes_back, sizes, group=self.ranks.group, async_op=True
            )
            self.meter.begun("keys", work)
            waits.append((work, back))
            self.traffic.add("keys", out.element_size() * (len(out) - sizes[self.ranks.rank]))
        with self.meter.waiting("keys"):
            for work, _ in waits:
                self.ranks.wait(work, call)
        return [back for _, back in waits]

    def _raise_together(self, failure: Exception | None) -> None:
        said = self.ranks.gather(None if failure is None else spell(failure))
        raise_first(said, failure)


def _sums(counts: Tensor) -> list[int]:
    """How many ids each rank gets or sends, given a line of counts for each."""
    return [int(total) for total in counts.sum(dim=1)]


def _categories(counts: Tensor, categories: int) -> Tensor:
    """The category of every id that is sent, as its place in the lane."""
    return (torch.arange(len(counts)) % categories).repeat_interleave(counts).int()
