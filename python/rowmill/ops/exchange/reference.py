"""The operators of an exchange in plain torch: the definition that the other implementations match.

FusedRec, Section 3: ids are deduplicated within a category, sorted by owning rank, deduplicated again at the owner, and
recovered by one combined index. Shapes as in `layout`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from rowmill.ops.exchange.layout import Bags, Message, Sorted, SortedBags, SortedFeature, Unique
from rowmill.ops.exchange.owner_hash import hashed, owner, states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def segment_unique(ids_N: Tensor, offsets: Sequence[int], paddings: Sequence[int | None]) -> Unique:
    """The distinct ids of every category, without the category's padding id.

    Args:
        ids_N: int64 [N], ordered by category.
        offsets: C + 1 offsets of the categories in `ids_N`.
        paddings: Per category, the padding id, or None.
    """
    found: list[Tensor] = []
    inverse_N = torch.full((len(ids_N),), -1, dtype=torch.int32)
    base = 0
    for padding, begin, end in zip(paddings, offsets[:-1], offsets[1:], strict=True):
        ids = ids_N[begin:end]
        counted = torch.ones_like(ids, dtype=torch.bool) if padding is None else ids != padding
        unique, inverse = _first_occurrences(ids[counted])
        inverse_N[begin:end][counted] = (inverse + base).int()
        found.append(unique)
        base += len(unique)
    counts_C = torch.tensor([len(unique) for unique in found], dtype=torch.int32)
    ids_U = torch.cat([*found, ids_N[:0]])
    return Unique(ids_U, counts_C, inverse_N)


def rank_sort(unique: Unique, categories: Sequence[int], ranks: int) -> Sorted:
    """Sort distinct ids by owning rank; stable within a rank.

    Args:
        unique: The distinct ids of C categories.
        categories: Numbers of the categories, for the owner hash.
        ranks: R.
    """
    numbers_U = torch.arange(len(categories)).repeat_interleave(unique.counts)
    owners_U = owner(hashed(unique.ids, states(categories)[numbers_U]), ranks)
    order_U = torch.argsort(owners_U, stable=True)
    positions_U = torch.empty_like(order_U)
    positions_U[order_U] = torch.arange(len(order_U))
    counts = torch.bincount(
        owners_U * len(categories) + numbers_U, minlength=ranks * len(categories)
    )
    return Sorted(unique.ids[order_U], positions_U.int(), counts.int())


def bag_sort(
    ids_N: Tensor, offsets: Tensor, features: Sequence[SortedFeature], ranks: int
) -> SortedBags:
    """Sort the ids of bags by the rank that pools them; stable within a rank.

    Args:
        ids_N: int64 [N].
        offsets: int64 [F * B + 1], offsets of bags in the ids; bag b of feature f has index f * B + b.
        features: The F features.
        ranks: R.
    """
    count = (len(offsets) - 1) // max(len(features), 1)
    bag_N = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff())
    owner_N = torch.empty_like(ids_N)
    for number, (category, rank, padding) in enumerate(features):
        begin, end = offsets[number * count], offsets[(number + 1) * count]
        ids = ids_N[begin:end]
        if rank is None:
            owners = owner(hashed(ids, states([category]).expand(len(ids))), ranks)
        else:
            owners = torch.full_like(ids, rank)
        owner_N[begin:end] = owners if padding is None else owners.where(ids != padding, -1)
    lengths = torch.zeros(ranks, len(offsets) - 1, dtype=torch.int32)
    sent_N = owner_N >= 0
    flat = owner_N[sent_N] * (len(offsets) - 1) + bag_N[sent_N]
    lengths.view(-1).index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    order = torch.argsort(owner_N, stable=True)[int((~sent_N).sum()) :]
    positions_N = torch.full((len(ids_N),), -1, dtype=torch.int32)
    positions_N[order] = torch.arange(len(order), dtype=torch.int32)
    return SortedBags(ids_N[order], positions_N, lengths.view(ranks, len(features), count))


def owner_unique(received_W: Tensor, counts_RC: Tensor, categories: int) -> Unique:
    """The distinct ids of every category among the ids received from all ranks.

    Args:
        received_W: int64 [W], ordered by rank, then category.
        counts_RC: int32 [R * C], ids per rank and category.
        categories: C.
    """
    category_of_W = (torch.arange(len(counts_RC)) % max(categories, 1)).repeat_interleave(counts_RC)
    order_W = torch.argsort(category_of_W, stable=True)
    sizes = torch.bincount(category_of_W, minlength=categories)
    ends = [0, *(int(end) for end in sizes.cumsum(0))]
    by_category = segment_unique(received_W[order_W], ends, [None] * categories)
    inverse_W = torch.empty_like(by_category.inverse)
    inverse_W[order_W] = by_category.inverse
    return Unique(by_category.ids, by_category.counts, inverse_W)


def combine(inverse_N: Tensor, positions_U: Tensor) -> Tensor:
    """The position of each lookup's row in the returned message, int32 [N]; -1 for padding."""
    padded = torch.cat([positions_U, positions_U.new_full((1,), -1)])
    return padded[inverse_N.long()]


def pack(rows: Tensor, unique: Unique, message: Message) -> Tensor:
    """Make a message, flat: its row i is the distinct row `unique.inverse[i]`."""
    return rows[_floats_of(unique, message)]


def unpack_add(wire: Tensor, unique: Unique, message: Message) -> Tensor:
    """The backward of `pack`: sum the message's rows that belong to each distinct row."""
    count = int((unique.counts * unique.counts.new_tensor(message.dims)).sum())
    return torch.zeros(count).index_add(0, _floats_of(unique, message), wire)


def recover(wire: Tensor, bags: Bags) -> Tensor:
    """Pool bags directly from the rows of a message: float32 [B, width]. Other implementations may round to bfloat16."""
    starts_W = _starts(bags.message)
    out = torch.zeros(bags.count, bags.width)
    for number, feature in enumerate(bags.features):
        ends = bags.offsets[number * bags.count : (number + 1) * bags.count + 1]
        rows = bags.combined[ends[0] : ends[-1]].long()
        counted = rows >= 0
        places = torch.where(counted, starts_W[rows] if len(starts_W) else 0, 0)
        floats = places[:, None] + torch.arange(feature.dim)
        factors = counted.float()
        if bags.weights is not None:
            factors = factors * bags.weights[ends[0] : ends[-1]]
        terms = torch.zeros(len(rows), feature.dim)
        if counted.any():
            terms = wire[floats.clamp(max=len(wire) - 1)] * factors[:, None]
        bag_of = torch.arange(bags.count).repeat_interleave(ends.diff())
        sums = torch.zeros(bags.count, feature.dim).index_add(0, bag_of, terms)
        if feature.mean:
            sizes = torch.zeros(bags.count).index_add(0, bag_of, counted.float())
            sums = sums / sizes.clamp(min=1)[:, None]
        out[:, feature.column : feature.column + feature.dim] = sums
    return out


def recover_backward(gradient: Tensor, bags: Bags) -> Tensor:
    """The backward of `recover`: the gradient of every row of the message, flat."""
    wire = torch.zeros(sum(bags.message.floats_by_rank), requires_grad=True)
    with torch.enable_grad():
        out = recover(wire, bags)
    if not out.requires_grad:  # There are no lookups.
        return wire.detach()
    return torch.autograd.grad(out, wire, gradient)[0]


def weights_backward(wire: Tensor, gradient: Tensor, bags: Bags) -> Tensor:
    """The gradient of every lookup's weight, float32 [N]; 0 for padding."""
    factors_N = torch.ones(len(bags.combined), requires_grad=True)
    with torch.enable_grad():
        out = recover(wire, replace(bags, weights=factors_N))
    if not out.requires_grad:  # There are no lookups.
        return torch.zeros_like(factors_N)
    return torch.autograd.grad(out, factors_N, gradient)[0]


def _first_occurrences(ids: Tensor) -> tuple[Tensor, Tensor]:
    values, inverse = cast("tuple[Tensor, Tensor]", torch.unique(ids, return_inverse=True))
    first = torch.full((len(values),), len(ids))
    first = first.scatter_reduce(0, inverse, torch.arange(len(ids)), "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return values[order], rank[inverse]


def _starts(message: Message) -> Tensor:
    """Offset in floats of each row of a message."""
    ranks = len(message.counts) // max(len(message.dims), 1)
    widths = torch.tensor(list(message.dims) * ranks, dtype=torch.int64)
    widths_W = widths.repeat_interleave(message.counts)
    return widths_W.cumsum(0) - widths_W


def _floats_of(unique: Unique, message: Message) -> Tensor:
    """For every float of a message, its index in the floats of the distinct rows."""
    starts_U = _starts(Message(unique.counts, message.dims))
    ranks = len(message.counts) // max(len(message.dims), 1)
    widths = torch.tensor(list(message.dims) * ranks, dtype=torch.int64)
    widths_W = widths.repeat_interleave(message.counts)
    starts_W = _starts(message)
    within = torch.arange(int(widths_W.sum())) - starts_W.repeat_interleave(widths_W)
    return starts_U[unique.inverse.long()].repeat_interleave(widths_W) + within
