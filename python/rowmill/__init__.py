"""Train embedding models whose tables outgrow memory.

`open` a store, create tables in it, and use them through `rowmill.nn` modules, or convert an existing
model with `convert`. Names are imported on first use, so that `rowmill --help` does not import torch.
"""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill import (
        cli,
        config,
        conversion,
        ctr,
        distributed,
        errors,
        gnn,
        init,
        integrations,
        kge,
        nn,
        ops,
        optim,
        partition,
        saved,
        serve,
        store,
        train,
    )
    from rowmill._core import __version__
    from rowmill.conversion.conversion import Conversion, convert, unconvert
    from rowmill.errors import RowmillError
    from rowmill.nn.ragged import RaggedBatch
    from rowmill.partition.export import export
    from rowmill.saved.loaded_run import LoadedRun, load
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
    from rowmill.store.row_files import load_rows
    from rowmill.store.store import Store, open
    from rowmill.store.tables import Table, Ticket
    from rowmill.store.versions import NewVersion, drop_version, rollback, versions

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
    "LoadedRun",
    "LowestNorm",
    "LowestScore",
    "MinCount",
    "NewVersion",
    "RaggedBatch",
    "RowmillError",
    "Store",
    "Table",
    "TableRules",
    "Ticket",
    "__version__",
    "checkpoints",
    "cli",
    "config",
    "conversion",
    "convert",
    "ctr",
    "distributed",
    "drop_version",
    "errors",
    "export",
    "gnn",
    "init",
    "integrations",
    "kge",
    "load",
    "load_rows",
    "nn",
    "open",
    "ops",
    "optim",
    "partition",
    "restore",
    "rollback",
    "saved",
    "serve",
    "store",
    "train",
    "unconvert",
    "versions",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "_core": ("__version__",),
        "conversion.conversion": ("Conversion", "convert", "unconvert"),
        "errors": ("RowmillError",),
        "nn.ragged": ("RaggedBatch",),
        "partition.export": ("export",),
        "saved.loaded_run": ("LoadedRun", "load"),
        "store.changes": ("ChangedRows", "ChangedTable", "Changes"),
        "store.eviction": (
            "TTL",
            "LeastFrequent",
            "LowestNorm",
            "LowestScore",
            "MinCount",
            "TableRules",
        ),
        "store.feed": (
            "ChangeFeed",
            "FeedCheckpoint",
            "FeedDeletes",
            "FeedEvent",
            "FeedRollback",
            "FeedRows",
        ),
        "store.remote": ("checkpoints", "restore"),
        "store.row_files": ("load_rows",),
        "store.store": ("Store", "open"),
        "store.tables": ("Table", "Ticket"),
        "store.versions": ("NewVersion", "drop_version", "rollback", "versions"),
    },
    modules=(
        "cli",
        "config",
        "conversion",
        "ctr",
        "distributed",
        "errors",
        "gnn",
        "init",
        "integrations",
        "kge",
        "nn",
        "ops",
        "optim",
        "partition",
        "saved",
        "serve",
        "store",
        "train",
    ),
)
