"""The operators of a fused exchange.

Ids of many categories become distinct and go to the ranks that own their rows; rows come back to be pooled; gradients take
the same way back. FusedRec (Section 3) without its losses: two ids of different categories never become one row. `reference` defines the
operators in plain torch, `cpu` runs them.
"""

from rowmill.ops.exchange.cpu import (
    combine,
    owner_unique,
    pack,
    rank_sort,
    recover,
    recover_backward,
    segment_unique,
    unpack_add,
)
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
]
