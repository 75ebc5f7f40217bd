"""The operators of an exchange compared with their definition in plain torch, and whole exchanges between simulated ranks.

What could break: ids with all 64 bits, equal ids of different categories, a category without ids, padding, a count assigned
to the wrong category, a gradient missing for one of two lookups, rows of different widths in one message. Copies are
bit-identical; sums agree up to rounding.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.ops import exchange
from rowmill.ops.exchange import (
    Bags,
    Message,
    RecoveredFeature,
    SortedFeature,
    Unique,
    reference,
)

EXTREMES = [0, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]

CASES: dict[str, list[list[int]]] = {
    "none": [],
    "empty": [[], [], []],
    "extremes": [EXTREMES, EXTREMES[::-1] * 3, [7]],
    "equal": [[5] * 70_001, [5] * 3, []],
    "odd": [[i * i % 97 - 40 for i in range(n)] for n in (1, 33, 0, 257, 1001)],
    "one": [[4, 4, -4]],
}


def arguments(case: str) -> tuple[Tensor, list[int], list[int | None], list[int]]:
    """Ids, offsets, a padding for every second category, and the categories' numbers."""
    asked = CASES[case]
    ids = torch.tensor([id_ for ids in asked for id_ in ids], dtype=torch.int64)
    offsets = [0]
    for of_category in asked:
        offsets.append(offsets[-1] + len(of_category))
    paddings = [(4, None, -1)[number % 3] for number in range(len(asked))]
    return ids, offsets, paddings, [number * 3 + 1 for number in range(len(asked))]


def assert_unique(got: Unique, wanted: Unique) -> None:
    assert torch.equal(got.ids, wanted.ids)
    assert torch.equal(got.counts, wanted.counts)
    assert torch.equal(got.inverse, wanted.inverse)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sorting_of_ids_equals_the_definition(case: str, ranks: int) -> None:
    ids, offsets, paddings, categories = arguments(case)
    unique = exchange.segment_unique(ids, offsets, paddings)
    assert_unique(unique, reference.segment_unique(ids, offsets, paddings))
    got = exchange.rank_sort(unique, categories, ranks)
    wanted = reference.rank_sort(unique, categories, ranks)
    for one, other in [
        (got.ids, wanted.ids),
        (got.positions, wanted.positions),
        (got.counts, wanted.counts),
    ]:
        assert torch.equal(one, other)
    combined = exchange.combine(unique.inverse, got.positions)
    assert torch.equal(combined, reference.combine(unique.inverse, got.positions))
    # Every lookup gets back its own id.
    counted = combined >= 0
    assert torch.equal(got.ids[combined[counted].long()], ids[counted])
    # An owner that receives the same ids from three ranks has every row once.
    received, counts = got.ids.repeat(3), got.counts.repeat(3)
    again = exchange.owner_unique(received, counts, len(categories))
    assert_unique(again, reference.owner_unique(received, counts, len(categories)))
    assert torch.equal(again.ids[again.inverse.long()], received)
    if categories:
        totals = got.counts.view(ranks, -1).sum(dim=0)
        assert torch.equal(again.counts.long(), totals)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_sorting_of_bags_equals_the_definition(case: str, ranks: int) -> None:
    ids, offsets, paddings, categories = arguments(case)
    features = [
        SortedFeature(category, (None, ranks - 1, None)[number % 3], padding)
        for number, (category, padding) in enumerate(zip(categories, paddings, strict=True))
    ]
    # Three bags per feature, of 0, 1 and the other ids.
    ends = [0]
    for begin, end in pairwise(offsets):
        ends += [begin, min(begin + 1, end), end]
    got = exchange.bag_sort(ids, torch.tensor(ends), features, ranks)
    wanted = reference.bag_sort(ids, torch.tensor(ends), features, ranks)
    assert torch.equal(got.ids, wanted.ids)
    assert torch.equal(got.positions, wanted.positions)
    assert torch.equal(got.lengths, wanted.lengths)
    sent = got.positions >= 0
    assert torch.equal(got.ids[got.positions[sent].long()], ids[sent])
    assert int(got.lengths.sum()) == len(got.ids)


def test_invalid_bags_are_refused() -> None:
    feature = SortedFeature(1, 2, None)
    with pytest.raises(InvalidInput, match="ranks of features must be below 2, got 2"):
        exchange.bag_sort(torch.tensor([1]), torch.tensor([0, 1]), [feature], 2)
    with pytest.raises(
        InvalidInput, match=r"offsets must ascend from 0 to the number of ids \(1\)"
    ):
        exchange.bag_sort(torch.tensor([1]), torch.tensor([0, 2]), [feature], 3)


def rows_of(unique: Unique, dims: list[int]) -> Tensor:
    return torch.rand(sum(c * d for c, d in zip(unique.counts.tolist(), dims, strict=True)))


@pytest.mark.parametrize("case", CASES)
def test_rows_and_gradients_equal_the_definition(case: str) -> None:
    torch.manual_seed(3)
    ids, offsets, paddings, categories = arguments(case)
    dims = [(4, 1, 17)[number % 3] for number in range(len(categories))]
    unique = exchange.segment_unique(ids, offsets, paddings)
    sent = exchange.rank_sort(unique, categories, 3)
    owned = exchange.owner_unique(sent.ids, sent.counts, len(categories))
    message = Message(sent.counts, dims)
    rows = rows_of(owned, dims)
    wire = exchange.pack(rows, owned, message)
    assert torch.equal(wire, reference.pack(rows, owned, message))
    combined = exchange.combine(unique.inverse, sent.positions)
    for weights, mean in [(None, False), (None, True), (torch.rand(len(ids)), False)]:
        # Three bags per category, of 0, 1 and the other lookups; the output has twice the needed columns.
        ends = [0]
        for begin, end in pairwise(offsets):
            ends += [begin, min(begin + 1, end), end]
        features = [
            RecoveredFeature(dim, 2 * sum(dims[:number]), mean) for number, dim in enumerate(dims)
        ]
        bags = Bags(message, combined, torch.tensor(ends), weights, features, 3, 2 * sum(dims))
        out = exchange.recover(wire, bags)
        torch.testing.assert_close(out, reference.recover(wire, bags), atol=1e-6, rtol=1e-4)
        gradient = torch.rand_like(out)
        back = exchange.recover_backward(gradient, bags)
        wanted = reference.recover_backward(gradient, bags)
        # The rounding error grows with the lookups of a row, and torch's threads split its sum in no fixed order.
        many = 1e-4 + len(ids) * 2.0**-24
        torch.testing.assert_close(back, wanted, atol=1e-6, rtol=many)
        if not mean:
            factors = exchange.weights_backward(wire, gradient, bags)
            wanted = reference.weights_backward(wire, gradient, bags)
            torch.testing.assert_close(factors, wanted, atol=1e-6, rtol=1e-4)
            assert not factors[combined < 0].any()
        # Output and gradients in bfloat16.
        narrow = torch.zeros_like(out, dtype=torch.bfloat16)
        assert torch.equal(exchange.recover(wire, bags, narrow), out.bfloat16())
        halves = gradient.bfloat16()
        assert torch.equal(
            exchange.recover_backward(halves, bags),
            exchange.recover_backward(halves.float(), bags),
        )
        # Into given buffers.
        dirty = torch.full_like(back, torch.nan)
        assert torch.equal(exchange.recover_backward(gradient, bags, dirty), back)
        assert torch.equal(exchange.pack(rows, owned, message, dirty.fill_(torch.nan)), wire)
        sums = exchange.unpack_add(back, owned, message)
        assert torch.equal(exchange.unpack_add(back, owned, message, torch.zeros_like(sums)), sums)
        wanted = reference.unpack_add(back, owned, message)
        torch.testing.assert_close(sums, wanted, atol=1e-6, rtol=1e-4)
        # Both backward operators in sequence agree with autograd of the forward's definition.
        leaf = rows.clone().requires_grad_()
        pooled = reference.recover(reference.pack(leaf, owned, message), bags)
        if pooled.requires_grad:
            (wanted,) = torch.autograd.grad(pooled, leaf, gradient)
            torch.testing.assert_close(sums, wanted, atol=1e-6, rtol=many)


def test_weights_with_mean_pooling_are_refused() -> None:
    message = Message(torch.ones(1, dtype=torch.int32), [2])
    feature = RecoveredFeature(2, 0, True)
    row = torch.zeros(1, dtype=torch.int32)
    bags = Bags(message, row, torch.tensor([0, 1]), None, [feature], 1, 2)
    with pytest.raises(InvalidInput, match="weights of ids work only with sum pooling"):
        exchange.weights_backward(torch.ones(2), torch.ones(1, 2), bags)


def test_invalid_offsets_are_refused() -> None:
    ids = torch.arange(3)
    for offsets in ([0, 2], [1, 3], [0, 3, 2, 3], [0, 4]):
        with pytest.raises(
            InvalidInput, match=r"offsets must ascend from 0 to the number of ids \(3\)"
        ):
            exchange.segment_unique(ids, offsets, [None] * (len(offsets) - 1))
