"""Stores and tables: training steps, eviction, checkpoints at a URL, changes between checkpoints, and the change feed."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.store.changes import ChangedRows, ChangedTable, Changes
    from rowmill.store.eviction import (
        TTL,
        LeastFrequent,
        LowestNorm,
        LowestScore,
        MinCount,
        TableRules,
    )
    from rowmill.store.feed import (
        ChangeFeed,
        FeedCheckpoint,
        FeedDeletes,
        FeedEvent,
        FeedRollback,
        FeedRows,
    )
    from rowmill.store.remote import checkpoints, restore
    from rowmill.store.store import Store, open
    from rowmill.store.tables import Table, Ticket

__all__ = [
    "TTL",
    "ChangeFeed",
    "ChangedRows",
    "ChangedTable",
    "Changes",
    "FeedCheckpoint",
    "FeedDeletes",
    "FeedEvent",
    "FeedRollback",
    "FeedRows",
    "LeastFrequent",
    "LowestNorm",
    "LowestScore",
    "MinCount",
    "Store",
    "Table",
    "TableRules",
    "Ticket",
    "checkpoints",
    "open",
    "restore",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "changes": ("ChangedRows", "ChangedTable", "Changes"),
        "eviction": ("TTL", "LeastFrequent", "LowestNorm", "LowestScore", "MinCount", "TableRules"),
        "feed": (
            "ChangeFeed",
            "FeedCheckpoint",
            "FeedDeletes",
            "FeedEvent",
            "FeedRollback",
            "FeedRows",
        ),
        "remote": ("checkpoints", "restore"),
        "store": ("Store", "open"),
        "tables": ("Table", "Ticket"),
    },
)
