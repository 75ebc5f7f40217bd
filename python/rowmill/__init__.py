"""Train embedding models whose tables outgrow memory.

`open` a store, make tables in it, and use them through `rowmill.nn` modules, or convert an existing
model with `convert`. Names are imported on first use, so that `rowmill --help` need not wait for
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rowmill import init, nn, optim
    from rowmill._core import __version__
    from rowmill.changes import ChangedRows, ChangedTable, Changes
    from rowmill.conversion import Conversion, convert, unconvert
    from rowmill.errors import RowmillError
    from rowmill.eviction import TTL, LeastFrequent, LowestNorm, LowestScore, MinCount
    from rowmill.feed import (
        ChangeFeed,
        FeedCheckpoint,
        FeedDeletes,
        FeedEvent,
        FeedRollback,
        FeedRows,
    )
    from rowmill.ragged import RaggedBatch
    from rowmill.remote import checkpoints, restore
    from rowmill.store import Store, open
    from rowmill.tables import Table, Ticket

__all__ = [
    "TTL",
    "ChangeFeed",
    "ChangedRows",
    "ChangedTable",
    "Changes",
    "Conversion",
    "FeedCheckpoint",
    "FeedDeletes",
    "FeedEvent",
    "FeedRollback",
    "FeedRows",
    "LeastFrequent",
    "LowestNorm",
    "LowestScore",
    "MinCount",
    "RaggedBatch",
    "RowmillError",
    "Store",
    "Table",
    "Ticket",
    "__version__",
    "checkpoints",
    "convert",
    "init",
    "nn",
    "open",
    "optim",
    "restore",
    "unconvert",
]

_HOMES = {
    "ChangeFeed": "feed",
    "FeedCheckpoint": "feed",
    "FeedDeletes": "feed",
    "FeedEvent": "feed",
    "FeedRollback": "feed",
    "FeedRows": "feed",
    "ChangedRows": "changes",
    "ChangedTable": "changes",
    "Changes": "changes",
    "Conversion": "conversion",
    "LeastFrequent": "eviction",
    "LowestNorm": "eviction",
    "LowestScore": "eviction",
    "MinCount": "eviction",
    "RaggedBatch": "ragged",
    "RowmillError": "errors",
    "Store": "store",
    "TTL": "eviction",
    "Table": "tables",
    "Ticket": "tables",
    "__version__": "_core",
    "checkpoints": "remote",
    "convert": "conversion",
    "open": "store",
    "restore": "remote",
    "unconvert": "conversion",
}


def __getattr__(name: str) -> Any:
    if name in ("init", "nn", "optim"):
        return import_module(f"rowmill.{name}")
    if name in _HOMES:
        return getattr(import_module(f"rowmill.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rowmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
