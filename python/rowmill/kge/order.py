"""BETA: an order of loading partitions of the entities into a buffer with few swaps.

A *partition* is a range of entity numbers, a *bucket* the triples whose head is in one partition and whose tail is in
another (or the same). A bucket can be trained while both its partitions are in the buffer, which holds `capacity`
partitions. BETA (Mohoney et al., "Marius: Learning Massive Graph Embeddings on a Single Machine", OSDI 2021, section 4)
works in rounds. In a round, `capacity - 1` partitions stay in the buffer and all others pass through the last slot, one
by one. Then the partitions that stayed have met every other one. They are replaced, and the next round begins with the
partitions that are left. The number of swaps is close to the lower bound:

- Each swap loads one partition, which meets at most `capacity - 1` others. So no order needs fewer than `swaps_least`.
- A round with `left` partitions outside the buffer takes `left` swaps, plus `min(left, capacity - 1)` to start the next
  round. `swaps` is the sum over all rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    Buffer = tuple[int, ...]
    Bucket = tuple[int, int]


def beta_order(partitions: int, capacity: int) -> Iterator[tuple[Buffer, list[Bucket]]]:
    """Yield the sequence of buffers, which differ by one swap, each with the buckets to train while it is loaded.

    A bucket is yielded once, with the first buffer that holds both its partitions.

    Examples:
        >>> for buffer, buckets in beta_order(3, 2):
        ...     print(buffer, buckets)
        (0, 1) [(0, 0), (0, 1), (1, 0), (1, 1)]
        (0, 2) [(0, 2), (2, 0), (2, 2)]
        (1, 2) [(1, 2), (2, 1)]
    """
    trained: set[Bucket] = set()
    for buffer in _buffers(partitions, capacity):
        coming = [
            (head, tail)
            for head in sorted(buffer)
            for tail in sorted(buffer)
            if (head, tail) not in trained
        ]
        trained.update(coming)
        yield buffer, coming


def swaps(partitions: int, capacity: int) -> int:
    """Number of swaps in BETA order, in closed form; the first `capacity` partitions are not counted."""
    _check(partitions, capacity)
    left = partitions - capacity
    if left == 0:
        return 0
    whole = left // (capacity - 1)
    rest = left - whole * (capacity - 1)
    rounds = whole * left - (capacity - 1) * whole * (whole - 1) // 2
    return rounds + whole * (capacity - 1) + 2 * rest


def swaps_least(partitions: int, capacity: int) -> int:
    """Lower bound on the swaps of any order.

    It is the number of pairs that are not in the first buffer, divided by the most pairs that one swap can add.
    """
    _check(partitions, capacity)
    pairs = partitions * (partitions - 1) // 2 - capacity * (capacity - 1) // 2
    return -(-pairs // max(capacity - 1, 1))


def _buffers(partitions: int, capacity: int) -> Iterator[Buffer]:
    _check(partitions, capacity)
    buffer = list(range(capacity))
    outside = list(range(capacity, partitions))
    yield tuple(buffer)
    while outside:
        for place, coming in enumerate(outside):
            outside[place], buffer[-1] = buffer[-1], coming
            yield tuple(buffer)
        fresh = outside[: capacity - 1]
        for place, coming in enumerate(fresh):
            buffer[place] = coming
            yield tuple(buffer)
        del outside[: len(fresh)]


def _check(partitions: int, capacity: int) -> None:
    if not 1 <= capacity <= partitions or (capacity == 1 and partitions > 1):
        raise InvalidInput(
            f"capacity = {capacity} with partitions = {partitions}: the buffer must hold at least 2 partitions and not more than "
            f"there are; use a capacity in [2, {partitions}]"
        )
