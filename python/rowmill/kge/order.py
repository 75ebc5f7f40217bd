"""BETA: the order in which partitions of the entities are loaded into the buffer.

A *partition* is a range of entity numbers, a *bucket* the triples whose head is in one partition and whose tail is in
another. A bucket can be trained while both its partitions are in a buffer of `capacity` of them. BETA (Mohoney et al.,
"Marius: Learning Massive Graph Embeddings on a Single Machine", OSDI 2021, section 4) keeps all but one place of the
buffer, lets every other partition pass through that place, then replaces the rest, whose every pair has been met, and
begins again with what is left. It needs nearly as few swaps as any order must:

- each swap brings one partition, which meets at most `capacity - 1` others, so no order has fewer than `swaps_least`;
- a round over `left` partitions outside the buffer takes `left` swaps, and `min(left, capacity - 1)` to begin the next:
  `swaps` sums that up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    Buffer = tuple[int, ...]
    Bucket = tuple[int, int]


def beta_order(partitions: int, capacity: int) -> Iterator[tuple[Buffer, list[Bucket]]]:
    """The buffers, one swap apart, each with the buckets that it is the first to allow.

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
    """How many partitions BETA brings into the buffer after the first `capacity`: its closed form."""
    _check(partitions, capacity)
    left = partitions - capacity
    if left == 0:
        return 0
    whole = left // (capacity - 1)
    rest = left - whole * (capacity - 1)
    rounds = whole * left - (capacity - 1) * whole * (whole - 1) // 2
    return rounds + whole * (capacity - 1) + 2 * rest


def swaps_least(partitions: int, capacity: int) -> int:
    """How many any order needs: pairs that do not meet at the beginning, over those a swap can let meet."""
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
            f"a buffer of {capacity} of {partitions} partitions lets no two of them meet, or has more than there are: "
            f"take 2 to {partitions}"
        )
