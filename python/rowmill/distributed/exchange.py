"""One exchange: ids to the ranks that own their rows, rows back, and later gradients the same way.

Before anything else every rank tells every other one how many ids of which category it will send, and that it is well: the
message of counts is the only one whose size nobody needs to be told. A rank that found its input wrong says so there, so
that all raise and none waits. Which rank owns what of a category, its owners learn from the counts; ids stay what they are.

Shapes as in `rowmill.ops.exchange.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from rowmill.distributed.ranks import raise_first, spell
from rowmill.distributed.traffic import Leg, Traffic
from rowmill.errors import InvalidInput
from rowmill.ops.exchange import (
    Message,
    Sorted,
    Unique,
    combine,
    owner_unique,
    pack,
    rank_sort,
    segment_unique,
    unpack_add,
)
from rowmill.ops.exchange.owner_hash import hashed, states, unhashed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.strategy import Lane

RowsOnWire = Literal["fp32", "bf16"]
"""How weights and gradients travel."""

_STATUS = 2
"""Words before the counts: whether the rank is well, and whether it trains."""


@dataclass(frozen=True, eq=False)
class Lookups:
    """What a rank looks up in one lane: ids category by category, where each begins, and what stands for nothing."""

    ids: Tensor
    offsets: list[int]
    paddings: list[int | None]


@dataclass(frozen=True, eq=False)
class Sent:
    """What a rank asked for in one lane.

    Attributes:
        combined: int32 [N], the row of every lookup among those that come back, or -1.
        message: The rows that come back.
    """

    combined: Tensor
    message: Message


@dataclass(frozen=True, eq=False)
class Owned:
    """What a rank is asked for in one lane: distinct rows, and the rows that it sends for them."""

    unique: Unique
    message: Message


class Exchange:
    """The messages of a collection's lanes."""

    def __init__(self, ranks: Ranks, lanes: Sequence[Lane], rows: RowsOnWire) -> None:
        if rows not in ("fp32", "bf16"):
            raise InvalidInput(f'rows_on_wire must be "fp32" or "bf16", got {rows!r}')
        self.ranks = ranks
        self.lanes = lanes
        self.rows = rows
        self.traffic = Traffic()

    # Forward.

    def ask(
        self, lookups: Sequence[Lookups] | Exception, *, training: bool
    ) -> tuple[list[Sent], list[Owned]]:
        """Send ids to their owners, and learn what this rank is asked for.

        Args:
            lookups: Of every lane, or why this rank has none.
            training: Whether rows are born and will be updated; ranks must agree.

        Raises:
            InvalidInput: On every rank, if the input of one is wrong.
        """
        if isinstance(lookups, Exception):
            self._tell_counts([], lookups, training)
            raise AssertionError("a rank that is not well raises")
        sorts: list[Sorted] = []
        combined: list[Tensor] = []
        for lane, asked in zip(self.lanes, lookups, strict=True):
            unique = segment_unique(asked.ids, asked.offsets, asked.paddings)
            sorts.append(rank_sort(unique, lane.categories, self.ranks.count))
            combined.append(combine(unique.inverse, sorts[-1].positions))
        told = self._tell_counts(sorts, None, training)
        keys, counts = self._send_keys(sorts, told)
        owned = [
            Owned(owner_unique(ids, numbers, len(lane.categories)), Message(numbers, lane.dims))
            for lane, ids, numbers in zip(self.lanes, keys, counts, strict=True)
        ]
        sent = [
            Sent(index, Message(sort.counts, lane.dims))
            for lane, index, sort in zip(self.lanes, combined, sorts, strict=True)
        ]
        return sent, owned

    def send_rows(
        self, rows: Sequence[Tensor] | Exception, sent: Sequence[Sent], owned: Sequence[Owned]
    ) -> list[Tensor]:
        """Rows of every lane to the ranks that asked: what came back, flat float32.

        Args:
            rows: The distinct rows of every lane, flat; or why this rank could not read them.
            sent: What this rank asked for.
            owned: What it is asked for.
        """
        failure = rows if isinstance(rows, Exception) else None
        well = torch.tensor([failure is None], dtype=torch.int64)
        heard = torch.empty(self.ranks.count, dtype=torch.int64)
        status = dist.all_gather_into_tensor(heard, well, group=self.ranks.group, async_op=True)
        self.traffic.add("counts", 8 * (self.ranks.count - 1))
        # Who could not read its rows sends nothing that anybody will look at: others wait for as many bytes.
        wires = [
            torch.zeros(sum(mine.message.floats_by_rank))
            if isinstance(rows, Exception)
            else pack(rows[number], mine.unique, mine.message)
            for number, mine in enumerate(owned)
        ]
        back = self._send(
            "rows",
            wires,
            [mine.message.floats_by_rank for mine in owned],
            [asked.message.floats_by_rank for asked in sent],
        )
        assert status is not None
        status.wait()
        if not bool(heard.all()):
            self._raise_together(failure)
        return back

    # Backward.

    def send_gradients(
        self, gradients: Sequence[Tensor], sent: Sequence[Sent], owned: Sequence[Owned]
    ) -> list[Tensor]:
        """Gradients of the rows that came back to their owners: their sum for every distinct row, flat.

        Ranks are added in their order, so equal gradients give equal bits.
        """
        back = self._send(
            "gradients",
            gradients,
            [asked.message.floats_by_rank for asked in sent],
            [mine.message.floats_by_rank for mine in owned],
        )
        return [
            unpack_add(wire, mine.unique, mine.message)
            for wire, mine in zip(back, owned, strict=True)
        ]

    # Messages.

    def _tell_counts(
        self, sorts: Sequence[Sorted], failure: Exception | None, training: bool
    ) -> Tensor:
        """Exchange counts: [R, counts of a rank], lane after lane."""
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        out = torch.zeros(ranks, _STATUS + sum(widths), dtype=torch.int64)
        out[:, :_STATUS] = torch.tensor([failure is None, training])
        if sorts:
            counts = [sort.counts.view(ranks, -1) for sort in sorts]
            told = [
                numbers.sum(dim=1, keepdim=True) if lane.hashed else numbers
                for lane, numbers in zip(self.lanes, counts, strict=True)
            ]
            out[:, _STATUS:] = torch.cat(told, dim=1)
        heard = torch.empty_like(out)
        dist.all_to_all_single(heard, out, group=self.ranks.group)
        self.traffic.add("counts", out[0].nbytes * (ranks - 1))
        well, trains = heard[:, 0], heard[:, 1]
        if not bool(well.all()):
            self._raise_together(failure)
        if trains.min() != trains.max():
            modes = ["training" if int(mode) else "evaluation" for mode in trains]
            raise InvalidInput(
                f"all ranks must train or none: {modes}; call train() or eval() on every rank"
            )
        return heard[:, _STATUS:]

    def _send_keys(
        self, sorts: Sequence[Sorted], told: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Ids of every lane to their owners; with them the counts by rank and category."""
        ranks = self.ranks.count
        widths = [1 if lane.hashed else len(lane.categories) for lane in self.lanes]
        heard = [part.contiguous() for part in torch.split(told, widths, dim=1)]
        to = [_sums(sort.counts.view(ranks, -1)) for sort in sorts]
        come = [_sums(counts) for counts in heard]
        if not any(lane.hashed for lane in self.lanes):
            keys = self._send("keys", [sort.ids for sort in sorts], to, come)
            return keys, [counts.view(-1).int() for counts in heard]
        categories = [
            _categories(sort.counts, len(lane.categories)) for lane, sort in self._zip(sorts)
        ]
        hashes = [
            hashed(sort.ids, states(lane.categories)[category.long()])
            for (lane, sort), category in zip(self._zip(sorts), categories, strict=True)
        ]
        received = self._send("keys", hashes, to, come)
        category_of = self._send("keys", categories, to, come)
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

    def _send(
        self, leg: Leg, outs: Sequence[Tensor], to: Sequence[list[int]], come: Sequence[list[int]]
    ) -> list[Tensor]:
        """One message per lane, all of them on their way at once."""
        narrow = self.rows == "bf16" and leg in ("rows", "gradients")
        waits: list[tuple[Any, Tensor]] = []
        for out, sizes, sizes_back in zip(outs, to, come, strict=True):
            # Gloo moves 16 bits only under the name of this type.
            out = out.bfloat16().view(torch.float16) if narrow else out
            back = out.new_empty(sum(sizes_back))
            work = dist.all_to_all_single(
                back, out, sizes_back, sizes, group=self.ranks.group, async_op=True
            )
            waits.append((work, back))
            self.traffic.add(leg, out.element_size() * (len(out) - sizes[self.ranks.rank]))
        for work, _ in waits:
            work.wait()
        return [back.view(torch.bfloat16).float() if narrow else back for _, back in waits]

    def _raise_together(self, failure: Exception | None) -> None:
        said = self.ranks.gather(None if failure is None else spell(failure))
        raise_first(said, failure)


def _sums(counts: Tensor) -> list[int]:
    """How many ids each rank gets or sends, given a line of counts for each."""
    return [int(total) for total in counts.sum(dim=1)]


def _categories(counts: Tensor, categories: int) -> Tensor:
    """The category of every id that is sent, as its place in the lane."""
    return (torch.arange(len(counts)) % categories).repeat_interleave(counts).int()
