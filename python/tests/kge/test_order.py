"""BETA order: every bucket once per epoch, one swap at a time, and as many swaps as the closed form says, which is close
to the lower bound."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rowmill.errors import InvalidInput
from rowmill.kge.order import beta_order, swaps, swaps_least

SIZES = [(p, c) for p in range(2, 25) for c in range(2, p + 1)]


@pytest.mark.parametrize(("partitions", "capacity"), SIZES)
def test_every_bucket_comes_once_with_both_partitions_in_the_buffer(
    partitions: int, capacity: int
) -> None:
    seen: list[tuple[int, int]] = []
    for buffer, buckets in beta_order(partitions, capacity):
        assert len(set(buffer)) == capacity
        assert all({head, tail} <= set(buffer) for head, tail in buckets)
        seen += buckets
    assert sorted(seen) == [(h, t) for h in range(partitions) for t in range(partitions)]


@pytest.mark.parametrize(("partitions", "capacity"), SIZES)
def test_swaps_are_single_and_as_many_as_the_closed_form(partitions: int, capacity: int) -> None:
    buffers = [set(buffer) for buffer, _ in beta_order(partitions, capacity)]
    assert all(len(after - before) == 1 for before, after in pairwise(buffers))
    assert len(buffers) - 1 == swaps(partitions, capacity)
    assert swaps(partitions, capacity) >= swaps_least(partitions, capacity)


def test_swaps_are_close_to_the_lower_bound() -> None:
    # A quarter of the partitions in memory: 11 % and 15 % above the lower bound.
    assert (swaps(16, 4), swaps_least(16, 4)) == (42, 38)
    assert (swaps(32, 8), swaps_least(32, 8)) == (78, 67)
    assert swaps(8, 8) == swaps(1, 1) == 0


@pytest.mark.parametrize(("partitions", "capacity"), [(2, 1), (4, 5), (3, 0)])
def test_a_buffer_in_which_not_all_pairs_can_meet_is_refused(
    partitions: int, capacity: int
) -> None:
    with pytest.raises(InvalidInput, match=f"capacity = {capacity} with partitions = {partitions}"):
        list(beta_order(partitions, capacity))
    with pytest.raises(InvalidInput, match=r"use a capacity in \[2, "):
        swaps(partitions, capacity)
