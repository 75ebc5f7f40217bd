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

from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from rowmill.distributed._exchange.buffers import Buffers
from rowmill.distributed._exchange.chunk import cut_owned, cut_sent, floats_by_category, runs
from rowmill.distributed._exchange.messages import Messages
from rowmill.distributed._exchange.pooled import told_of
from rowmill.distributed._exchange.requests import (
    Asking,
    Position,
    Received,
    Requests,
    copy_to_all,
    owned_by,
    received,
    words_by_rank,
    words_coming,
)
from rowmill.distributed._exchange.traffic import Leg, Traffic
from rowmill.distributed.meter import Meter
from rowmill.distributed.ranks import raise_first, spell
from rowmill.errors import InvalidInput
from rowmill.ops.exchange import (
    Bags,
    Sorted,
    pack,
    recover_backward,
    unpack_add,
)
from rowmill.ops.exchange.owner_hash import hashed, states, unhashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rowmill.distributed._exchange.chunk import Owned, Sent
    from rowmill.distributed._exchange.pooled import BagRequest
    from rowmill.distributed._exchange.requests import Lookups
    from rowmill.distributed._liveness.whereabouts import Call
    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.strategy import Lane

RowsOnWire = Literal["fp32", "bf16"]
"""Number format of weights and gradients in messages."""

_STATUS = 2
"""Number of words before the counts: the status of the rank, and whether it trains. Pooled categories add one word."""

_FAILED, _WELL, _ENDED, _LARGE = range(4)
"""Status of a rank: invalid input, a request of rows, no more batches, or a request of more rows than one chunk holds."""


def check_rows_on_wire(rows: RowsOnWire) -> None:
    """Raise `InvalidInput` unless `rows` is "fp32" or "bf16"."""
    if rows not in ("fp32", "bf16"):
        raise InvalidInput(f'rows_on_wire must be "fp32" or "bf16", got {rows!r}')


class Exchange:
    """The messages of a collection's lanes.

    Args:
        ranks: Ranks with the process group for ids and rows of this collection only.
        back: Ranks with the process group for gradients; None: no gradients are exchanged.
        of: Suffix of the names of forwards in error messages.
        lanes: The lanes of the collection; it changes them when it plans placements, before the first message.
        rows: Number format of rows and gradients in messages.
        chunk_bytes_max: Bytes above which rows or gradients are split into messages of whole categories.
        traffic: Counters to share; None: new ones.
    """

    def __init__(
        self,
        ranks: Ranks,
        back: Ranks | None,
        of: str,
        lanes: list[Lane],
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
        self,
        lookups: Sequence[Lookups] | Exception,
        bags: Sequence[BagRequest | None],
        *,
        training: bool,
    ) -> Requests:
        """Send ids to the owners of their rows, and receive the requests of other ranks.

        Args:
            lookups: Lookups of every lane, none in pooled categories; or the error because of which this rank has none.
            bags: The bags of every lane's pooled categories, or None for a lane without such categories.
            training: Whether this is a training get; must be equal on all ranks.

        Raises:
            InvalidInput: On every rank, if the input of one rank is invalid, or ranks differ in `training`.
        """
        call = self._begin()
        if isinstance(lookups, Exception):
            self._tell_counts(call, [], _FAILED, lookups, training)
            raise AssertionError("_tell_counts() raises if a rank failed")
        of_lanes = zip(self.lanes, lookups, bags, strict=True)
        at = Position(self.ranks.rank, self.ranks.count, training)
        asking = [Asking(number, *of, at) for number, of in enumerate(of_lanes)]
        sent = [one.sent for one in asking]
        # If every message between two ranks is at most 1/ranks of a chunk, no rank receives more than one chunk in total.
        share = self._chunk_floats() // self.ranks.count
        large = any(max(one.back.floats_by_rank) > share for one in sent)
        status = _LARGE if large else _WELL
        told, statuses, beside = self._tell_counts(call, asking, status, None, training)
        come = self._send_keys(call, asking, told, beside)
        mine = [owned_by(lane, at, of_lane) for lane, of_lane in zip(self.lanes, come, strict=True)]
        owned = [of_lane for of_lane, _ in mine]
        pools = [pool for _, of_lane in mine for pool in of_lane]
        if _LARGE in statuses:
            chunks = self._agree_on_chunks(call, sent, owned)
            offsets = [one.offsets for one in asking]
            sent = [
                part for of in zip(sent, offsets, chunks, strict=True) for part in cut_sent(*of)
            ]
            owned = [part for of in zip(owned, chunks, strict=True) for part in cut_owned(*of)]
        return Requests(sent, owned, pools, call.name)

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
        requests: Requests,
    ) -> Iterator[Tensor]:
        """Start sending rows to the ranks that requested them.

        Args:
            rows: The distinct rows and pooled vectors of every chunk, flat, which must not change before all chunks have arrived; or the
                error because of which this rank could not read them.
            requests: The requests of the forward.

        Returns:
            An iterator over the received rows of every chunk, flat float32, each valid until the next is requested. It
            raises on every rank if one rank could not read its rows.
        """
        failure = rows if isinstance(rows, Exception) else None
        owned = requests.owned
        call = self.ranks.whereabouts.begin("rows", self._of, f"the rows of {requests.forward}")
        well = torch.tensor([failure is None], dtype=torch.int64)
        heard = torch.empty(self.ranks.count, dtype=torch.int64)
        status = dist.all_gather_into_tensor(heard, well, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", status)
        self.traffic.add("counts", 8 * (self.ranks.count - 1))

        def pack_rows(number: int, wire: Tensor) -> None:
            # A rank that could not read its rows sends arbitrary bytes, because other ranks wait for this message.
            if not isinstance(rows, Exception):
                pack(rows[number], owned[number].vectors, owned[number].message, wire)

        messages = self._messages(self.ranks, call, "rows", requests, pack_rows, back=False)

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
        requests: Requests,
    ) -> Callable[[Sequence[Tensor]], None]:
        """Start sending gradients of received rows to the owners of the rows.

        Args:
            gradient: float32 or bfloat16 [B, width], gradient of the pooled vectors.
            bags: Bags over the received rows, per chunk.
            requests: The requests of the forward.

        Returns:
            A function that waits for the gradients and adds them, per chunk, to the sums of distinct rows and vectors, flat float32.
            Gradients are added in the order of ranks, so results are bit-identical between runs.
        """

        def pack_gradients(number: int, wire: Tensor) -> None:
            recover_backward(gradient, bags[number], wire)
            copy_to_all(requests.sent[number], self.ranks.rank, wire)

        assert self._back is not None, "this exchange has no process group for gradients"
        owned = requests.owned
        call = self._back.whereabouts.begin(
            "backward", self._of, f"the backward of {requests.forward}"
        )
        messages = self._messages(
            self._back, call, "gradients", requests, pack_gradients, back=True
        )

        def add_to(sums: Sequence[Tensor]) -> None:
            for wire, mine, rows in zip(messages.arrivals(), owned, sums, strict=True):
                unpack_add(wire, mine.vectors_back, mine.back, rows)

        return add_to

    # Messages.

    def _begin(self) -> Call:
        return self.ranks.whereabouts.begin("forward", self._of)

    def _tell_counts(
        self,
        call: Call,
        asking: Sequence[Asking],
        status: int,
        failure: Exception | None,
        training: bool,
    ) -> tuple[Tensor, list[int], list[int]]:
        """Exchange counts and statuses; returns counts [R, counts of all lanes], statuses and third words of all ranks.

        Raises:
            InvalidInput: On every rank: one rank failed with it, or ranks differ in `training` or number of batches.
            ExchangeFailed: On every rank: one rank failed with another error.
        """
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        words = _STATUS + any(lane.pooled for lane in self.lanes)
        out = torch.zeros(ranks, words + sum(widths), dtype=torch.int64)
        out[:, :_STATUS] = torch.tensor([status, training])
        if asking:
            if words > _STATUS:
                out[:, _STATUS] = told_of([one.bags for one in asking])
            told = [
                one.counts_RC.sum(dim=1, keepdim=True) if lane.hashed else one.counts_RC
                for lane, one in zip(self.lanes, asking, strict=True)
            ]
            out[:, words:] = torch.cat(told, dim=1)
        heard = torch.empty_like(out)
        work = dist.all_to_all_single(heard, out, group=self.ranks.group, async_op=True)
        self.meter.begun("counts", work)
        self.traffic.add("counts", out[0].nbytes * (ranks - 1))
        with self.meter.waiting("counts"):
            self.ranks.wait(work, call)
        statuses, trains = [int(status) for status in heard[:, 0]], heard[:, 1]
        if _FAILED in statuses:
            self._raise_together(failure)
        going_on = [rank for rank, status in enumerate(statuses) if status != _ENDED]
        if going_on and len(going_on) < ranks:
            ended, goes_on = statuses.index(_ENDED), going_on[0]
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
        beside: list[int] = heard[:, words - 1].numpy().tolist() if words > _STATUS else [0] * ranks
        return heard[:, words:], statuses, beside

    def _send_keys(
        self, call: Call, asking: Sequence[Asking], told: Tensor, beside: Sequence[int]
    ) -> list[Received]:
        """Send the ids of every lane to their owners; returns what arrived, per lane."""
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        heard = [part.contiguous() for part in torch.split(told, widths, dim=1)]
        if not any(lane.hashed for lane in self.lanes):
            rank = self.ranks.rank
            come = [
                words_coming(lane, rank, counts, beside)
                for lane, counts in zip(self.lanes, heard, strict=True)
            ]
            keys = self._send_ids(
                call, [one.keys for one in asking], [one.keys_by_rank for one in asking], come
            )
            return [
                received(lane, rank, of_lane, counts, beside)
                for lane, of_lane, counts in zip(self.lanes, keys, heard, strict=True)
            ]
        to, come = [one.keys_by_rank for one in asking], [words_by_rank(counts) for counts in heard]
        sorts = [one.sort for one in asking]
        categories = [
            _categories(sort.counts, len(lane.categories)) for lane, sort in self._zip(sorts)
        ]
        hashes = [
            hashed(sort.ids, states(lane.categories)[category.long()])
            for (lane, sort), category in zip(self._zip(sorts), categories, strict=True)
        ]
        arrived = self._send_ids(call, hashes, to, come)
        category_of = self._send_ids(call, categories, to, come)
        found: list[Received] = []
        for lane, hashes, category_W, sizes in zip(
            self.lanes, arrived, category_of, come, strict=True
        ):
            numbers_W = category_W.long()
            rank_W = torch.arange(ranks).repeat_interleave(torch.tensor(sizes))
            ids = unhashed(hashes, states(lane.categories)[numbers_W])
            blocks = rank_W * len(lane.categories) + numbers_W
            counts = torch.bincount(blocks, minlength=ranks * len(lane.categories)).int()
            found.append(Received(ids, counts, []))
        return found

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
            torch.maximum(floats_by_category(asked.back), floats_by_category(mine.back))
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
        requests: Requests,
        pack: Callable[[int, Tensor], None],
        *,
        back: bool,
    ) -> Messages:
        """One message per chunk: rows from owners to requesters or, with `back`, gradients from requesters to owners."""
        sent, owned = requests.sent, requests.owned
        asked = [(one.back if back else one.message).floats_by_rank for one in sent]
        mine = [(one.back if back else one.message).floats_by_rank for one in owned]
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
            work = self.ranks.all_to_all(back, out, sizes_back, sizes)
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


def _categories(counts: Tensor, categories: int) -> Tensor:
    """The category of every sent id, as its position in the lane."""
    return (torch.arange(len(counts)) % categories).repeat_interleave(counts).int()
