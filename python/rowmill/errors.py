"""What can go wrong, as exceptions a program can tell apart. The messages hold the numbers.

The binding raises these classes too: it looks them up here by name, so a class is declared once.
"""

from __future__ import annotations

__all__ = [
    "BackendMissing",
    "BundleDamaged",
    "BundleExists",
    "CannotExport",
    "ChangesGone",
    "CheckpointInDoubt",
    "CheckpointMissing",
    "ExchangeFailed",
    "FeedFailed",
    "FeedGap",
    "FeedMissing",
    "InvalidInput",
    "MemoryTooSmall",
    "RankLost",
    "RemoteConflict",
    "RemoteError",
    "RowPlacesExhausted",
    "RowmillError",
    "SpecMismatch",
    "StalenessTimeout",
    "StepConflict",
    "StoreClosed",
    "StoreCorrupt",
    "StoreForked",
    "StoreFull",
    "StoreIoError",
    "StoreLocked",
    "StoreMissing",
    "StoreNewer",
    "StorePoisoned",
    "StoreReadOnly",
    "StoreSuperseded",
    "TableMissing",
    "TooManySteps",
]


class RowmillError(Exception):
    """Base of every error of this package."""


class InvalidInput(RowmillError, ValueError):
    """An argument is wrong; the message names it, what was expected and what came. Nothing changed."""


class DataError(InvalidInput):
    """Bad input data. The message names file, row, column, value and the fix, as far as they exist."""


class CannotExport(RowmillError):
    """A module does what a served graph cannot hold; the message names the operator and the source line."""


class BundleExists(RowmillError, FileExistsError):
    """A bundle would be written to a path where something is."""


class BundleDamaged(RowmillError):
    """A file of a bundle is absent or differs from what its manifest says; the message names the file."""


class BackendMissing(RowmillError, ImportError):
    """A backend of torch.distributed is not installed; the message says how to."""


class MemoryTooSmall(RowmillError, ValueError):
    """The memory budget cannot hold what must be in memory; the message says how much is needed."""


class SpecMismatch(InvalidInput):
    """A table exists with another dim, optimizer, initializer or id range than the one given."""


class TableMissing(RowmillError, LookupError):
    """The store has no table of that name; the message lists the names it has."""


class StoreMissing(RowmillError, FileNotFoundError):
    """There is no store at that path."""


class StoreLocked(RowmillError):
    """Another process has the store open for writing."""


class StoreFull(RowmillError, OSError):
    """The device has no space left. The last checkpoint is whole."""


class RowPlacesExhausted(RowmillError):
    """A group of tables has no row places left for new rows; everything else goes on."""


class StoreIoError(RowmillError, OSError):
    """The device failed to read or write."""


class StoreCorrupt(RowmillError):
    """Stored bytes do not match their checksum. They were not returned."""


class StoreNewer(RowmillError):
    """The store was written by a newer version of this package."""


class StorePoisoned(RowmillError):
    """An earlier write failed: changes are refused until the store is opened again."""


class StoreReadOnly(RowmillError):
    """A change was asked of a store opened with `read_only=True`."""


class StoreClosed(RowmillError):
    """The store was closed."""


class StoreForked(RowmillError):
    """A forked child (a DataLoader worker) used a store that its parent had opened: open it read-only in the child."""


class ChangesGone(RowmillError, LookupError):
    """The changes since that checkpoint are not kept any more; the message names the oldest that are."""


class FeedMissing(RowmillError, LookupError):
    """The store publishes no feed."""


class FeedGap(RowmillError, LookupError):
    """What a follower would read next is not there: it starts again with a copy of the last checkpoint."""


class FeedFailed(RowmillError, OSError):
    """Nothing is published until the next checkpoint: the feed could not be written, or not fast enough."""


class StoreSuperseded(RowmillError):
    """The checkpoint a reader stands on was replaced; open the store again."""


class StalenessTimeout(RowmillError, TimeoutError):
    """A row stayed beyond its staleness bound until the deadline; the message names it and its holder."""


class StepConflict(RowmillError):
    """A training step cannot go on: it lost its rows to an older step, or it had already ended."""


class RemoteError(RowmillError, OSError):
    """A request to an object store failed, and failed again when tried again; the message has URL and cause."""


class RemoteConflict(RemoteError):
    """Another writer pushes to the same URL, or did: what is there is not the past of this store."""


class CheckpointMissing(RowmillError, LookupError):
    """There is no such checkpoint; the message lists those that are there."""


class CheckpointInDoubt(RowmillError):
    """A store has a checkpoint prepared and not committed; `at` says which one holds."""


class TooManySteps(RowmillError):
    """More training steps are open at once than the store allows."""


class ExchangeFailed(RowmillError):
    """A rank could not do its part of an exchange, or ranks are in different calls; every rank raises the same."""


class RankLost(RowmillError):
    """Another rank of a distributed run ended, or does not come; the message names it, its step, and what it said last, if anything."""


class ServingError(RowmillError):
    """A worker cannot serve, or a request to it failed."""
