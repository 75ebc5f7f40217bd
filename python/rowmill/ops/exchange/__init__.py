"""The operators of a fused exchange.

Ids of many categories become distinct and go to the ranks that own their rows; rows come back to be pooled; gradients take
the same way back. FusedRec (Section 3) without its losses: two ids of different categories never become one row. `reference` defines the
operators in plain torch; `cpu` runs them, and `triton` where their tensors are on a GPU.
"""

from rowmill.ops.exchange import cpu
from rowmill.ops.exchange.dispatch import by_device
from rowmill.ops.exchange.layout import Bags, Message, RecoveredFeature, Sorted, Unique

__all__ = [
    "Bags",
    "Message",
    "RecoveredFeature",
    "Sorted",
    "Unique",
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
rank_sort = by_device(cpu.rank_sort)
owner_unique = by_device(cpu.owner_unique)
combine = by_device(cpu.combine)
pack = by_device(cpu.pack)
unpack_add = by_device(cpu.unpack_add)
recover = by_device(cpu.recover)
recover_backward = by_device(cpu.recover_backward)
weights_backward = by_device(cpu.weights_backward)
