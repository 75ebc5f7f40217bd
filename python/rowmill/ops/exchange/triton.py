"""The operators of an exchange on a GPU, as defined by `reference`; the number of launches is constant in the categories.

Triton comes with torch for Linux. Only two operations synchronise with the device: `segment_unique` and `owner_unique` read
the number of distinct ids, and a message's sizes are read where they are not yet known. With `TRITON_INTERPRET=1`, set
before Triton is imported, the kernels accept CPU tensors, for tests.
"""

# Callers pass numbers for a kernel's constexpr arguments.
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.errors import InvalidInput
from rowmill.ops.exchange import triton_kernels as kernels
from rowmill.ops.exchange.layout import Bags, Message, Sorted, Unique
from rowmill.ops.exchange.owner_hash import states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_BLOCK = 1024
"""Ids per program."""
_ROWS = 16
"""Rows per program."""


def segment_unique(ids: Tensor, offsets: Sequence[int], paddings: Sequence[int | None]) -> Unique:
    """As `reference.segment_unique`: one hash table for all categories, and a prefix sum over first lookups."""
    ids = ids.contiguous()
    ends = _sent(offsets, ids.device)
    numbers = _spread(torch.arange(len(paddings), device=ids.device), ends.diff(), len(ids))
    padded = _sent([padding is not None for padding in paddings], ids.device, torch.bool)
    values = _sent([padding or 0 for padding in paddings], ids.device)
    wanted = ~(padded[numbers] & (ids == values[numbers]))
    return _unique(ids, torch.where(wanted, numbers, -1).int(), ends)


def rank_sort(unique: Unique, categories: Sequence[int], ranks: int) -> Sorted:
    """As `reference.rank_sort`: ids are counted per program and rank, then moved."""
    ids, device = unique.ids, unique.ids.device
    count, blocks = len(ids), _blocks(len(ids))
    counts = torch.zeros(ranks * len(categories), dtype=torch.int32, device=device)
    out, positions = torch.empty_like(ids), torch.empty(count, dtype=torch.int32, device=device)
    if count == 0:
        return Sorted(out, positions, counts)
    numbers = _spread(_places(unique.counts), unique.counts, count).int()
    of_categories: list[int] = states(categories).numpy().tolist()
    salts = _sent(of_categories, device)
    owners = torch.empty_like(positions)
    by_block = torch.empty(ranks * blocks, dtype=torch.int32, device=device)
    kernels.own[(blocks,)](
        ids, numbers, salts, owners, by_block, counts, count, len(categories), ranks, BLOCK=_BLOCK
    )
    before = _before(by_block).int()
    kernels.place[(blocks,)](ids, owners, before, out, positions, count, ranks, BLOCK=_BLOCK)
    return Sorted(out, positions, counts)


def owner_unique(received: Tensor, counts: Tensor, categories: int) -> Unique:
    """As `reference.owner_unique`."""
    ranks = len(counts) // max(categories, 1)
    counts_RC = counts.long().view(ranks, categories) if categories else counts.long()
    # Reorder ids by category, then by rank.
    starts = _before(counts_RC.reshape(-1))
    by_category = _before(counts_RC.t().reshape(-1)).view(categories, ranks).t().reshape(-1)
    moved = _spread(by_category - starts, counts_RC.reshape(-1), len(received))
    moved = moved + torch.arange(len(received), device=received.device)
    ids = torch.empty_like(received)
    ids[moved] = received
    totals = counts_RC.sum(dim=0) if categories else counts_RC
    ends = torch.cat([totals.new_zeros(1), totals.cumsum(0)])
    unique = _unique(ids, _spread(_places(totals), totals, len(ids)).int(), ends)
    return Unique(unique.ids, unique.counts, unique.inverse[moved])


def combine(inverse: Tensor, positions: Tensor) -> Tensor:
    """As `reference.combine`."""
    out = torch.empty_like(inverse)
    if len(inverse) > 0:
        grid = (_blocks(len(inverse)),)
        kernels.choose[grid](inverse, positions, out, len(inverse), BLOCK=_BLOCK)
    return out


def pack(rows: Tensor, unique: Unique, message: Message, wire: Tensor | None = None) -> Tensor:
    """As `reference.pack`, into `wire` if it is given."""
    if wire is None:
        wire = torch.empty(sum(message.floats_by_rank), device=rows.device)
    count = len(unique.inverse)
    if count > 0:
        sources, targets, widths = _owned(unique, message)
        width = _power_of_two(max(message.dims))
        grid = (-(-count // _ROWS),)
        kernels.copy[grid](rows, sources, wire, targets, widths, count, ROWS=_ROWS, WIDTH=width)
    return wire


def unpack_add(
    wire: Tensor, unique: Unique, message: Message, rows: Tensor | None = None
) -> Tensor:
    """As `reference.unpack_add`, added to `rows` if they are given."""
    if rows is None:
        floats = sum(Message(unique.counts, message.dims).floats_by_rank)
        rows = torch.zeros(floats, device=wire.device)
    if len(unique.inverse) > 0:
        targets, sources, widths = _owned(unique, message)
        factors = torch.ones(len(sources), device=wire.device)
        _add(wire, sources, factors, rows, targets, widths, unique.inverse, max(message.dims))
    return rows


def recover(wire: Tensor, bags: Bags, out: Tensor | None = None) -> Tensor:
    """As `reference.recover`, rounded to the dtype of `out`; columns of `out` without a feature do not change."""
    if out is None:
        out = torch.zeros(bags.count, bags.width, device=wire.device)
    number = len(bags.features) * bags.count
    if number > 0:
        starts = _rows_of_lookups(bags)
        factors, divisors = _factors(bags)
        dims, columns = _of_features(bags)
        width = _power_of_two(max(feature.dim for feature in bags.features))
        kernels.pool[(number,)](
            wire, starts, factors, bags.offsets, dims, columns, divisors, out,
            bags.count, bags.width, ROWS=_ROWS, WIDTH=width,
        )  # fmt: skip
    return out


def recover_backward(gradient: Tensor, bags: Bags, wire: Tensor | None = None) -> Tensor:
    """As `reference.recover_backward`, into `wire` if it is given; lookups of a row are summed in their order."""
    if wire is None:
        wire = torch.empty(sum(bags.message.floats_by_rank), device=gradient.device)
    wire.zero_()
    if len(bags.combined) > 0:
        targets, sources, widths = _lookups(bags)
        factors, divisors = _factors(bags)
        factors = factors / divisors[_bag_of_lookups(bags)]
        widest = max(feature.dim for feature in bags.features)
        keys = bags.combined
        _add(gradient.contiguous(), sources, factors, wire, targets, widths, keys, widest)
    return wire


def weights_backward(wire: Tensor, gradient: Tensor, bags: Bags) -> Tensor:
    """As `reference.weights_backward`."""
    if any(feature.mean for feature in bags.features):
        raise InvalidInput(
            "weights of ids work only with sum pooling, got a feature with mean pooling"
        )
    count = len(bags.combined)
    factors = torch.empty(count, device=wire.device)
    if count > 0:
        starts, sources, widths = _lookups(bags)
        width = _power_of_two(max(feature.dim for feature in bags.features))
        kernels.multiply[(-(-count // _ROWS),)](
            wire, starts, gradient.contiguous(), sources, widths, factors, count,
            ROWS=_ROWS, WIDTH=width,
        )  # fmt: skip
    return factors


def _unique(ids: Tensor, numbers: Tensor, ends: Tensor) -> Unique:
    """Distinct ids per category, given the category number of each id; -1 marks padding."""
    count, device = len(ids), ids.device
    inverse = torch.empty(count, dtype=torch.int32, device=device)
    if count == 0:
        return Unique(ids, torch.zeros_like(ends[1:], dtype=torch.int32), inverse)
    slots_of_table = _power_of_two(2 * count)
    table = torch.full((slots_of_table,), -1, dtype=torch.int32, device=device)
    firsts = torch.full_like(table, count)
    slots = torch.empty_like(ids)
    leads, unique = torch.empty_like(inverse), torch.empty_like(ids)
    grid, block = (_blocks(count),), {"BLOCK": _BLOCK}
    kernels.insert[grid](ids, numbers, table, firsts, slots, count, slots_of_table - 1, **block)
    kernels.lead[grid](numbers, slots, firsts, leads, count, **block)
    ranked = torch.cumsum(leads, 0, dtype=torch.int32)
    kernels.number[grid](ids, numbers, slots, firsts, ranked, unique, inverse, count, **block)
    up_to = torch.cat([ranked.new_zeros(1), ranked])[ends]
    found = int(ranked[-1])  # The only synchronisation with the device.
    return Unique(unique[:found], up_to.diff(), inverse)


def _add(
    source: Tensor,
    sources: Tensor,
    factors: Tensor,
    target: Tensor,
    targets: Tensor,
    widths: Tensor,
    keys: Tensor,
    widest: int,
) -> None:
    """Add rows of `source` to rows of `target`; rows of one key are summed in their order."""
    ordered, order = torch.sort(keys, stable=True)
    kernels.add_runs[(len(keys),)](
        source, sources, factors, target, targets, widths, order, ordered, len(keys),
        ROWS=_ROWS, WIDTH=_power_of_two(widest),
    )  # fmt: skip


def _owned(unique: Unique, message: Message) -> tuple[Tensor, Tensor, Tensor]:
    """For every row of a message: offset of its distinct row, its own offset, and its width."""
    count = len(unique.inverse)
    starts_U, _ = _starts(Message(unique.counts, message.dims), len(unique.ids))
    starts_W, widths_W = _starts(message, count)
    return starts_U[unique.inverse], starts_W, widths_W


def _starts(message: Message, rows: int) -> tuple[Tensor, Tensor]:
    """Offset and width in floats of each row of a message: int64 [rows] each."""
    counts, widths = message.counts.long(), _widths(message)
    widths_W = _spread(widths, counts, rows)
    return _before(widths_W), widths_W


def _lookups(bags: Bags) -> tuple[Tensor, Tensor, Tensor]:
    """For every lookup: offset of its row or -1, offset of its bag's vector, and width: int64 [N] each."""
    dims, columns = _of_features(bags)
    bag_of = _bag_of_lookups(bags)
    feature = bag_of // max(bags.count, 1)
    vectors = (bag_of % max(bags.count, 1)) * bags.width + columns[feature]
    return _rows_of_lookups(bags), vectors, dims[feature]


def _rows_of_lookups(bags: Bags) -> Tensor:
    """Offset of each lookup's row in the message, or -1: int64 [N]."""
    counts, widths = bags.message.counts.long(), _widths(bags.message)
    rows = bags.combined.long()
    if len(counts) == 0:
        return rows
    block = torch.searchsorted(counts.cumsum(0), rows, right=True).clamp_(max=len(counts) - 1)
    starts = _before(counts * widths)[block] + (rows - _before(counts)[block]) * widths[block]
    return torch.where(rows < 0, -1, starts)


def _factors(bags: Bags) -> tuple[Tensor, Tensor]:
    """The weight of every lookup, float32 [N], and the divisor of every bag's sum, float32 [F * B]."""
    counted = bags.combined >= 0
    factors = counted.float() if bags.weights is None else bags.weights.detach() * counted
    divisors = counted.new_ones(len(bags.features) * bags.count, dtype=torch.int64)
    if any(feature.mean for feature in bags.features):
        sizes = torch.zeros_like(divisors).index_add_(0, _bag_of_lookups(bags), counted.long())
        means = _sent([feature.mean for feature in bags.features], counted.device, torch.bool)
        of_means = means[:, None].expand(-1, bags.count).reshape(-1)
        divisors = torch.where(of_means, sizes.clamp_(min=1), divisors)
    return factors, divisors.float()


def _bag_of_lookups(bags: Bags) -> Tensor:
    lengths = bags.offsets.diff()
    return _spread(_places(lengths), lengths, len(bags.combined))


def _of_features(bags: Bags) -> tuple[Tensor, Tensor]:
    """Dims and columns, int64 [F] each."""
    device = bags.combined.device
    dims = _sent([feature.dim for feature in bags.features], device)
    return dims, _sent([feature.column for feature in bags.features], device)


def _widths(message: Message) -> Tensor:
    """The width of a row per rank and category, int64 [R * C]."""
    ranks = len(message.counts) // max(len(message.dims), 1)
    return _sent(list(message.dims), message.counts.device).repeat(ranks)


def _places(values: Tensor) -> Tensor:
    return torch.arange(len(values), device=values.device)


def _before(values: Tensor) -> Tensor:
    """Exclusive prefix sum."""
    return values.cumsum(0) - values


def _spread(values: Tensor, counts: Tensor, total: int) -> Tensor:
    """Repeat each value `count` times. The caller passes the total, so that torch need not synchronise to compute it."""
    return values.repeat_interleave(counts.long(), output_size=total)


def _sent(values: Sequence[int], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Copy a few numbers to the device, asynchronously."""
    there = device.type == "cuda"
    return torch.tensor(values, dtype=dtype, pin_memory=there).to(device, non_blocking=True)


def _blocks(count: int) -> int:
    return -(-count // _BLOCK)


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
