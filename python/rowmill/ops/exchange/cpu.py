"""The operators of an exchange on the CPU, as defined by `reference`: one call per operator for all categories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill import _core
from rowmill.ops.exchange.layout import Bags, Message, Sorted, SortedBags, SortedFeature, Unique
from rowmill.ops.floats import floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def segment_unique(ids: Tensor, offsets: Sequence[int], paddings: Sequence[int | None]) -> Unique:
    """As `reference.segment_unique`."""
    ids = ids.contiguous()
    unique = torch.empty_like(ids)
    counts = torch.empty(len(paddings), dtype=torch.int32)
    inverse = torch.empty(len(ids), dtype=torch.int32)
    found = _core.segment_unique(
        ids.numpy(),
        offsets,
        paddings,
        unique.numpy(),
        counts.numpy(),
        inverse.numpy(),
        torch.get_num_threads(),
    )
    return Unique(unique[:found], counts, inverse)


def rank_sort(unique: Unique, categories: Sequence[int], ranks: int) -> Sorted:
    """As `reference.rank_sort`."""
    ids = torch.empty_like(unique.ids)
    positions = torch.empty(len(ids), dtype=torch.int32)
    counts = torch.empty(ranks * len(categories), dtype=torch.int32)
    _core.rank_sort(
        unique.ids.numpy(),
        unique.counts.numpy(),
        categories,
        ranks,
        ids.numpy(),
        positions.numpy(),
        counts.numpy(),
    )
    return Sorted(ids, positions, counts)


def bag_sort(
    ids: Tensor, offsets: Tensor, features: Sequence[SortedFeature], ranks: int
) -> SortedBags:
    """As `reference.bag_sort`."""
    ids, offsets = ids.contiguous(), offsets.contiguous()
    count = (len(offsets) - 1) // max(len(features), 1)
    out = torch.empty_like(ids)
    positions = torch.empty(len(ids), dtype=torch.int32)
    lengths = torch.empty(ranks, len(features), count, dtype=torch.int32)
    sent = _core.bag_sort(
        ids.numpy(),
        offsets.numpy(),
        features,
        ranks,
        out.numpy(),
        positions.numpy(),
        lengths.view(-1).numpy(),
    )
    return SortedBags(out[:sent], positions, lengths)


def owner_unique(received: Tensor, counts: Tensor, categories: int) -> Unique:
    """As `reference.owner_unique`."""
    unique = torch.empty_like(received)
    unique_counts = torch.empty(categories, dtype=torch.int32)
    inverse = torch.empty(len(received), dtype=torch.int32)
    found = _core.owner_unique(
        received.numpy(),
        counts.numpy(),
        unique.numpy(),
        unique_counts.numpy(),
        inverse.numpy(),
        torch.get_num_threads(),
    )
    return Unique(unique[:found], unique_counts, inverse)


def combine(inverse: Tensor, positions: Tensor) -> Tensor:
    """As `reference.combine`."""
    combined = torch.empty_like(inverse)
    _core.combine(inverse.numpy(), positions.numpy(), combined.numpy())
    return combined


def pack(rows: Tensor, unique: Unique, message: Message, wire: Tensor | None = None) -> Tensor:
    """As `reference.pack`, into `wire` if it is given."""
    if wire is None:
        wire = torch.empty(sum(message.floats_by_rank))
    _core.pack(rows.numpy(), _owned(unique, message), wire.numpy())
    return wire


def unpack_add(
    wire: Tensor, unique: Unique, message: Message, rows: Tensor | None = None
) -> Tensor:
    """As `reference.unpack_add`, added to `rows` if they are given."""
    if rows is None:
        rows = torch.zeros(sum(Message(unique.counts, message.dims).floats_by_rank))
    _core.unpack_add(wire.numpy(), _owned(unique, message), rows.numpy())
    return rows


def recover(wire: Tensor, bags: Bags, out: Tensor | None = None) -> Tensor:
    """As `reference.recover`, rounded to the dtype of `out`; columns of `out` without a feature do not change."""
    if out is None:
        out = torch.zeros(bags.count, bags.width)
    _core.recover(wire.numpy(), _bags(bags), floats(out))
    return out


def recover_backward(gradient: Tensor, bags: Bags, wire: Tensor | None = None) -> Tensor:
    """As `reference.recover_backward`, into `wire` if it is given."""
    if wire is None:
        wire = torch.empty(sum(bags.message.floats_by_rank))
    _core.recover_backward(floats(gradient), _bags(bags), wire.numpy())
    return wire


def weights_backward(wire: Tensor, gradient: Tensor, bags: Bags) -> Tensor:
    """As `reference.weights_backward`."""
    factors = torch.empty(len(bags.combined))
    gradient = gradient.float().contiguous()
    _core.weights_backward(wire.numpy(), gradient.numpy(), _bags(bags), factors.numpy())
    return factors


def _owned(unique: Unique, message: Message) -> _core.OwnedArguments:
    """Arguments of the kernels `pack` and `unpack_add`."""
    return unique.counts.numpy(), unique.inverse.numpy(), message.counts.numpy(), message.dims


def _bags(bags: Bags) -> _core.BagArguments:
    """Arguments of the kernels `recover`, `recover_backward` and `weights_backward`."""
    weights = None if bags.weights is None else bags.weights.detach().contiguous().numpy()
    message = bags.message
    return (
        message.counts.numpy(),
        message.dims,
        bags.combined.numpy(),
        bags.offsets.numpy(),
        weights,
        bags.features,
        bags.count,
        bags.width,
    )
