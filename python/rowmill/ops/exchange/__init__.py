"""Operators of a fused exchange of embedding rows between ranks (FusedRec, Section 3).

A rank deduplicates the ids of many categories and sends them to the ranks that own the rows. The rows come back and are
pooled, and their gradients return to the owners. Unlike FusedRec's, the exchange never merges ids of different categories
into one row. `reference` defines the operators in plain torch; `cpu` implements them on the CPU, `triton` on a GPU, except
`bag_sort`, which is on the CPU only.
"""

from rowmill.ops.exchange import cpu
from rowmill.ops.exchange.dispatch import by_device
from rowmill.ops.exchange.layout import (
    Bags,
    Message,
    RecoveredFeature,
    Sorted,
    SortedBags,
    SortedFeature,
    Unique,
)

__all__ = [
    "Bags",
    "Message",
    "RecoveredFeature",
    "Sorted",
    "SortedBags",
    "SortedFeature",
    "Unique",
    "bag_sort",
    "combine",
    "owner_unique",
    "pack",
    "rank_sort",
    "recover",
    "recover_backward",
    "segment_unique",
    "unpack_add",
    "weights_backward",
]

segment_unique = by_device(cpu.segment_unique)
bag_sort = cpu.bag_sort
rank_sort = by_device(cpu.rank_sort)
owner_unique = by_device(cpu.owner_unique)
combine = by_device(cpu.combine)
pack = by_device(cpu.pack)
unpack_add = by_device(cpu.unpack_add)
recover = by_device(cpu.recover)
recover_backward = by_device(cpu.recover_backward)
weights_backward = by_device(cpu.weights_backward)
