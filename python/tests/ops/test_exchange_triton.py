"""The Triton operators of an exchange compared with their definition in plain torch and with the CPU's operators.

Kernels run in Triton's interpreter on CPU tensors, and on a GPU, if there is one, compiled. What could break: partly filled
programs, two keys that share a slot, equal ids of different categories, a hot row whose lookups span programs, padding, rows
of different widths in one message. Ids are bit-identical; sums agree up to rounding.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rowmill.errors import InvalidInput
from rowmill.ops import exchange
from rowmill.ops.exchange import Bags, Message, RecoveredFeature, Unique, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

pytest.importorskip("triton", reason="Triton comes with torch for Linux alone")

EXTREMES = [0, -1, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63)]

CASES: dict[str, list[list[int]]] = {
    "none": [],
    "empty": [[], [], []],
    "extremes": [EXTREMES, EXTREMES[::-1] * 3, [7]],
    "equal": [[5] * 2_049, [5] * 3, []],
    "odd": [[i * i % 97 - 40 for i in range(n)] for n in (1, 33, 0, 257, 1001)],
    "distinct": [list(range(-700, 701)), list(range(1024))],
    "one": [[4, 4, -4]],
}

ROWS: dict[str, list[list[int]]] = {
    "none": [],
    "empty": [[], [], []],
    "extremes": [EXTREMES, EXTREMES[::-1] * 3, [7]],
    "equal": [[5] * 53, [5] * 3, []],
    "odd": [[i * i % 17 - 8 for i in range(n)] for n in (1, 33, 0, 5)],
}
"""Fewer in the interpreter, where every row takes a millisecond."""

DEVICES = ["interpreter", "gpu"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    there = torch.cuda.is_available()
    if request.param == "gpu" and not there:
        pytest.skip("no GPU here")
    if request.param == "interpreter" and there:
        pytest.skip("kernels are compiled where a GPU is")
    return "cuda" if there else "cpu"


@pytest.fixture
def kernels() -> ModuleType:
    from rowmill.ops.exchange import triton

    return triton


def arguments(
    asked: list[list[int]], device: str
) -> tuple[Tensor, list[int], list[int | None], list[int], list[int]]:
    """Ids, offsets, a padding for two categories of three, the categories' numbers, and their dims."""
    ids = torch.tensor([id_ for of in asked for id_ in of], dtype=torch.int64, device=device)
    offsets = [0]
    for of_category in asked:
        offsets.append(offsets[-1] + len(of_category))
    paddings = [(4, None, -1)[number % 3] for number in range(len(asked))]
    dims = [(4, 1, 17)[number % 3] for number in range(len(asked))]
    return ids, offsets, paddings, [number * 3 + 1 for number in range(len(asked))], dims


def unique_of(unique: Unique, device: str) -> Unique:
    return Unique(*(of.to(device) for of in (unique.ids, unique.counts, unique.inverse)))


def assert_equal(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [1, 5])
def test_sorting_of_ids_equals_the_definition(
    case: str, ranks: int, device: str, kernels: ModuleType
) -> None:
    ids, offsets, paddings, categories, _ = arguments(CASES[case], device)
    unique = kernels.segment_unique(ids, offsets, paddings)
    wanted = reference.segment_unique(ids.cpu(), offsets, paddings)
    assert_equal(
        [unique.ids, unique.counts, unique.inverse], [wanted.ids, wanted.counts, wanted.inverse]
    )
    sent = kernels.rank_sort(unique, categories, ranks)
    by_definition = reference.rank_sort(wanted, categories, ranks)
    assert_equal(
        [sent.ids, sent.positions, sent.counts],
        [by_definition.ids, by_definition.positions, by_definition.counts],
    )
    combined = kernels.combine(unique.inverse, sent.positions)
    assert_equal([combined], [reference.combine(wanted.inverse, by_definition.positions)])
    # An owner receives different requests from three ranks.
    received = torch.cat([sent.ids, sent.ids.flip(0), sent.ids])
    counts = torch.cat([sent.counts, sent.counts.view(ranks, -1).flip(0, 1).flatten(), sent.counts])
    owned = kernels.owner_unique(received, counts, len(categories))
    again = reference.owner_unique(received.cpu(), counts.cpu(), len(categories))
    assert_equal([owned.ids, owned.counts, owned.inverse], [again.ids, again.counts, again.inverse])


def moved(bags: Bags, device: str) -> Bags:
    """Copy bags to another device."""
    message = Message(bags.message.counts.to(device), bags.message.dims)
    weights = None if bags.weights is None else bags.weights.to(device)
    return replace(
        bags,
        message=message,
        combined=bags.combined.to(device),
        offsets=bags.offsets.to(device),
        weights=weights,
    )


@pytest.mark.parametrize("case", ROWS)
def test_rows_and_gradients_equal_the_definition(
    case: str, device: str, kernels: ModuleType
) -> None:
    torch.manual_seed(3)
    ids, offsets, paddings, categories, dims = arguments(ROWS[case], "cpu")
    unique = exchange.segment_unique(ids, offsets, paddings)
    sent = exchange.rank_sort(unique, categories, 3)
    owned = exchange.owner_unique(sent.ids, sent.counts, len(categories))
    message = Message(sent.counts, dims)
    there = unique_of(owned, device), Message(sent.counts.to(device), dims)
    rows = torch.rand(sum(Message(owned.counts, dims).floats_by_rank))
    wire = reference.pack(rows, owned, message)
    assert_equal([kernels.pack(rows.to(device), *there)], [wire])
    combined = exchange.combine(unique.inverse, sent.positions)
    ends = [0]
    for begin, end in pairwise(offsets):  # Three bags, of 0, 1 and the other lookups.
        ends += [begin, min(begin + 1, end), end]
    for weights, mean in [(None, False), (None, True), (torch.rand(len(ids)), False)]:
        # There are unused columns between features.
        features = [
            RecoveredFeature(dim, 2 * sum(dims[:number]), mean) for number, dim in enumerate(dims)
        ]
        bags = Bags(message, combined, torch.tensor(ends), weights, features, 3, 2 * sum(dims))
        bags_there = moved(bags, device)
        out = reference.recover(wire, bags)
        got = kernels.recover(wire.to(device), bags_there).cpu()
        torch.testing.assert_close(got, out, atol=1e-6, rtol=1e-4)
        gradient = torch.rand_like(out)
        back = reference.recover_backward(gradient, bags)
        got = kernels.recover_backward(gradient.to(device), bags_there)
        torch.testing.assert_close(got.cpu(), back, atol=1e-6, rtol=1e-4 + len(ids) * 2.0**-24)
        # Output and gradients in bfloat16; a GPU rounds the output, the interpreter truncates it.
        narrow = torch.zeros_like(out, dtype=torch.bfloat16).to(device)
        narrow = kernels.recover(wire.to(device), bags_there, narrow).float().cpu()
        torch.testing.assert_close(narrow, out, atol=1e-6, rtol=2.0**-7)
        halves = gradient.bfloat16().to(device)
        assert torch.equal(
            kernels.recover_backward(halves, bags_there),
            kernels.recover_backward(halves.float(), bags_there),
        )
        # The same operations in the same order are bit-identical.
        assert torch.equal(got, kernels.recover_backward(gradient.to(device), bags_there))
        if not mean:
            factors = reference.weights_backward(wire, gradient, bags)
            got = kernels.weights_backward(wire.to(device), gradient.to(device), bags_there).cpu()
            torch.testing.assert_close(got, factors, atol=1e-6, rtol=1e-4)
            assert not got[combined < 0].any()
        sums = reference.unpack_add(back, owned, message)
        got = kernels.unpack_add(back.to(device), *there).cpu()
        torch.testing.assert_close(got, sums, atol=1e-6, rtol=1e-4)
        got = kernels.unpack_add(back.to(device), *there, torch.ones_like(sums).to(device)).cpu()
        torch.testing.assert_close(got, sums + 1, atol=1e-6, rtol=1e-4)


def test_weights_with_mean_pooling_are_refused(device: str, kernels: ModuleType) -> None:
    message = Message(torch.ones(1, dtype=torch.int32, device=device), [2])
    row = torch.zeros(1, dtype=torch.int32, device=device)
    ends = torch.tensor([0, 1], device=device)
    bags = Bags(message, row, ends, None, [RecoveredFeature(2, 0, True)], 1, 2)
    ones = torch.ones(1, 2, device=device)
    with pytest.raises(InvalidInput, match="weights of ids work only with sum pooling"):
        kernels.weights_backward(ones[0], ones, bags)


def test_operators_do_not_synchronise_with_the_gpu(device: str) -> None:
    if device != "cuda":
        pytest.skip("tensors of the CPU go to the kernels of the CPU")
    ids = torch.tensor([3, 3, 5], device=device)
    unique = exchange.segment_unique(ids, [0, 2, 3], [None, None])
    assert unique.ids.is_cuda
    sent = exchange.rank_sort(unique, [1, 2], 2)
    torch.cuda.set_sync_debug_mode(
        "error"
    )  # From here on, synchronisation with the device is an error.
    try:
        combined = exchange.combine(unique.inverse, sent.positions)
        exchange.rank_sort(unique, [1, 2], 2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(sent.ids[combined.long()], ids)


class Waits(TorchDispatchMode):
    """Counts operations that synchronise with the device: reads of numbers, and sizes that depend on values."""

    TOLD = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten._unique2.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func in self.TOLD
        return func(*args, **(kwargs or {}))


def test_only_reading_the_number_of_distinct_ids_synchronises(
    device: str, kernels: ModuleType
) -> None:
    ids, offsets, paddings, categories, dims = arguments(ROWS["odd"], device)

    def waits(call: Callable[[], Any]) -> tuple[Any, int]:
        with Waits() as seen:
            result = call()
        return result, seen.count

    unique, count = waits(lambda: kernels.segment_unique(ids, offsets, paddings))
    assert count == 1
    sent, count = waits(lambda: kernels.rank_sort(unique, categories, 3))
    assert count == 0
    combined, count = waits(lambda: kernels.combine(unique.inverse, sent.positions))
    assert count == 0
    owned, count = waits(lambda: kernels.owner_unique(sent.ids, sent.counts, len(categories)))
    assert count == 1
    message = Message(sent.counts, dims)
    wire = torch.empty(sum(message.floats_by_rank), device=device)
    rows = torch.ones(sum(Message(owned.counts, dims).floats_by_rank), device=device)
    assert waits(lambda: kernels.pack(rows, owned, message, wire))[1] == 0
    assert waits(lambda: kernels.unpack_add(wire, owned, message, rows))[1] == 0
    ends = torch.arange(len(ids) + 1, device=device)
    features = [RecoveredFeature(dim, 17 * number, False) for number, dim in enumerate(dims)]
    # Two bags that together contain every lookup.
    bags = Bags(message, combined, ends[:: len(ids)], None, features[-1:], 1, 17 * len(dims))
    out = torch.zeros(1, 17 * len(dims), device=device)
    assert waits(lambda: kernels.recover(wire, bags, out))[1] == 0
    assert waits(lambda: kernels.recover_backward(out, bags, wire))[1] == 0
