"""One exchange: ids are sent to the ranks that own their rows, rows come back, and later gradients return to the owners.

First every rank sends every other rank its status and its number of ids per category, in a message of fixed size. A rank with
invalid input reports it there, so that all ranks raise instead of waiting. From the counts an owner knows the category of each
id that it receives, so ids are sent unchanged.

Gradients use a separate process group. If a rank leaves out a backward, its next counts must not match the gradients of other
ranks: in gloo a message of unexpected size ends the process. With two ranks on two cores, the threads of that group cost 0.4 ms
per step.

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
"""Number format of weights and gradients in messages."""

_STATUS = 2
"""Number of words before the counts: the status of the rank, and whether it trains."""

_FAILED, _WELL, _ENDED, _LARGE = range(4)
"""Status of a rank: invalid input, a request of rows, no more batches, or a request of more rows than one chunk holds."""


def check_rows_on_wire(rows: RowsOnWire) -> None:
    """Raise `InvalidInput` unless `rows` is "fp32" or "bf16"."""
    if rows not in ("fp32", "bf16"):
        raise InvalidInput(f'rows_on_wire must be "fp32" or "bf16", got {rows!r}')


@dataclass(frozen=True, eq=False)
class Lookups:
    """The lookups of a rank in one lane: ids ordered by category, C + 1 offsets of categories, and a padding id for each."""

    ids: Tensor
    offsets: list[int]
    paddings: list[int | None]


class Exchange:
    """The messages of a collection's lanes.

    Args:
        ranks: Ranks with the process group for ids and rows of this collection only.
        back: Ranks with the process group for gradients; None: no gradients are exchanged.
        of: Suffix of the names of forwards in error messages.
        lanes: The lanes of the collection.
        rows: Number format of rows and gradients in messages.
        chunk_bytes_max: Bytes above which rows or gradients are split into messages of whole categories.
        traffic: Counters to share; None: new ones.
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
        """Create an exchange with the same lanes and counters and its own process group, for another thread. A collective."""
        ranks, of = self.ranks.beside(), f" ahead{self._of}"
        return Exchange(ranks, None, of, self.lanes, self.rows, self.chunk_bytes_max, self.traffic)

    # Forward.

    def ask(
        self, lookups: Sequence[Lookups] | Exception, *, training: bool
    ) -> tuple[list[Sent], list[Owned], str]:
        """Send ids to the owners of their rows, and receive the requests of other ranks.

        Args:
            lookups: Lookups of every lane, or the error because of which this rank has none.
            training: Whether this is a training get; must be equal on all ranks.

        Returns:
            The requests sent and received, per lane, or per chunk if any lane is large; and the name of the forward for
            error messages.

        Raises:
            InvalidInput: On every rank, if the input of one rank is invalid, or ranks differ in `training`.
        """
        call = self._begin()
        if isinstance(lookups, Exception):
            self._tell_counts(call, [], _FAILED, lookups, training)
            raise AssertionError("_tell_counts() raises if a rank failed")
        sorts: list[Sorted] = []
        sent: list[Sent] = []
        for number, (lane, asked) in enumerate(zip(self.lanes, lookups, strict=True)):
            unique = segment_unique(asked.ids, asked.offsets, asked.paddings)
            sorts.append(rank_sort(unique, lane.categories, self.ranks.count))
            combined = combine(unique.inverse, sorts[-1].positions)
            sent.append(Sent(number, lane.places, combined, Message(sorts[-1].counts, lane.dims)))
        # If every message between two ranks is at most 1/ranks of a chunk, no rank receives more than one chunk in total.
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
        """Report, in place of ids, that this rank has no more batches.

        Raises:
            InvalidInput: On every rank, if another rank has a batch or invalid input.
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
        """Start sending rows to the ranks that requested them.

        Args:
            rows: The distinct rows of every chunk, flat, which must not change before all chunks have arrived; or the
                error because of which this rank could not read them.
            sent: Requests sent by this rank.
            owned: Requests received by this rank.
            forward: Name of the forward, for error messages.

        Returns:
            An iterator over the received rows of every chunk, flat float32, each valid until the next is requested. It
            raises on every rank if one rank could not read its rows.
        """
        failure = rows if isinstance(rows, Exception) else None
        call = self.ranks.whereabouts.begin("rows", self._of, f"the rows of {forward}")
        well = torch.tensor([failure is None], dtype=torch.int64)
        heard = torch.empty(self.ranks.count, dtype=torch.int64)
        status = dist.all_gather_into_tensor(heard, well, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", status)
        self.traffic.add("counts", 8 * (self.ranks.count - 1))

        def pack_rows(number: int, wire: Tensor) -> None:
            # A rank that could not read its rows sends arbitrary bytes, because other ranks wait for this message.
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
        """Start sending gradients of received rows to the owners of the rows.

        Args:
            gradient: float32 or bfloat16 [B, width], gradient of the pooled vectors.
            bags: Bags over the received rows, per chunk.
            sent: Requests sent by this rank.
            owned: Requests received by this rank.
            forward: Name of the forward, for error messages.

        Returns:
            A function that waits for the gradients and adds them, per chunk, to the distinct rows' sums, flat float32.
            Gradients are added in the order of ranks, so results are bit-identical between runs.
        """

        def pack_gradients(number: int, wire: Tensor) -> None:
            recover_backward(gradient, bags[number], wire)

        assert self._back is not None, "this exchange has no process group for gradients"
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
        """Exchange counts and statuses; returns counts [R, counts of all lanes] and the status of every rank.

        Raises:
            InvalidInput: On every rank: one rank failed with it, or ranks differ in `training` or number of batches.
            ExchangeFailed: On every rank: one rank failed with another error.
        """
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
                f"rank {ended} has no more batches, but rank {goes_on} has: pass equally many batches on every rank, "
                "empty ones if necessary"
            )
        if trains.min() != trains.max():
            modes = [int(mode) for mode in trains]
            raise InvalidInput(
                f"all ranks must train or none: in {call} rank {modes.index(1)} trains and rank {modes.index(0)} evaluates; "
                "call train() or eval() on every rank, and forward equally often after each"
            )
        return heard[:, _STATUS:], statuses

    def _send_keys(
        self, call: Call, sorts: Sequence[Sorted], told: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Send the ids of every lane to their owners; returns received ids and counts by rank and category, per lane."""
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
        """Largest number of floats in a chunk."""
        return self.chunk_bytes_max // (2 if self.rows == "bf16" else 4)

    def _agree_on_chunks(
        self, call: Call, sent: Sequence[Sent], owned: Sequence[Owned]
    ) -> list[list[range]]:
        """The chunks of every lane, as ranges of categories that are equal on all ranks.

        Ranks gather the sizes of categories, because no rank knows those of other ranks. This happens only in steps with a
        large message.
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
        """One message per chunk: rows from owners to requesters or, with `back`, gradients from requesters to owners."""
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
        """Send one message per lane, all at once; returns the received ones."""
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
    """Number of ids per rank: row sums of counts [R, C]."""
    return [int(total) for total in counts.sum(dim=1)]


def _categories(counts: Tensor, categories: int) -> Tensor:
    """The category of every sent id, as its position in the lane."""
    return (torch.arange(len(counts)) % categories).repeat_interleave(counts).int()
