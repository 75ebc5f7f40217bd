"""Exceptions of rowmill, one class per kind of failure. Messages hold the names and values concerned.

The binding raises these classes too: it finds them here by name, so each class is declared once.
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
    "ConfigError",
    "DataError",
    "ExchangeFailed",
    "ExtraMissing",
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
    "ServingError",
    "SpecMismatch",
    "StalenessTimeout",
    "StepConflict",
    "StorageError",
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
    "TorchTooOld",
    "UnsavedRows",
]


class RowmillError(Exception):
    """Base of every error of this package."""


class InvalidInput(RowmillError, ValueError):
    """An argument is invalid; the message names it, the expected and the given value. Nothing changed."""


class DataError(InvalidInput):
    """Input data is invalid. The message gives file, row, column, value and the fix, where known."""


class ConfigError(InvalidInput):
    """A setting is invalid; the message gives its name, its value and the fix."""


class CannotExport(RowmillError):
    """A module cannot be exported for serving; the message names the operator and the source line."""


class BundleExists(RowmillError, FileExistsError):
    """The path for a new bundle already exists."""


class BundleDamaged(RowmillError):
    """A file of a bundle is missing or differs from its manifest; the message names the file."""


class BackendMissing(RowmillError, ImportError):
    """A backend of torch.distributed is not installed; the message says how to install it."""


class ExtraMissing(RowmillError, ImportError):
    """A package of an extra is not installed; the message says how to install it."""


class TorchTooOld(RowmillError, ImportError):
    """The installed torch is too old for a part of this package; the message has the installed and the required version."""


class MemoryTooSmall(RowmillError, ValueError):
    """The memory budget is below the minimum; the message gives the minimum in bytes."""


class SpecMismatch(InvalidInput):
    """A table already exists with another dim, dtype, optimizer, initializer or id range."""


class TableMissing(RowmillError, LookupError):
    """The store has no table of that name; the message lists its tables."""


class StoreMissing(RowmillError, FileNotFoundError):
    """There is no store at that path."""


class StoreLocked(RowmillError):
    """Another process has the store open for writing."""


class StoreFull(RowmillError, OSError):
    """The disk is full. The last checkpoint is intact."""


class RowPlacesExhausted(RowmillError):
    """A group of tables has no row places left for new rows; existing rows stay usable."""


class StoreIoError(RowmillError, OSError):
    """A read or write of the disk failed."""


class StoreCorrupt(RowmillError):
    """Stored bytes do not match their checksum. They were not returned."""


class StoreNewer(RowmillError):
    """The store was written by a newer version of this package."""


class StorePoisoned(RowmillError):
    """An earlier write failed: the store refuses changes until it is opened again."""


class StoreReadOnly(RowmillError):
    """A change was attempted in a store opened with `read_only=True`."""


class StoreClosed(RowmillError):
    """The store was closed."""


class StoreForked(RowmillError):
    """A forked child, such as a DataLoader worker, used its parent's store: open it read-only in the child."""


class ChangesGone(RowmillError, LookupError):
    """The changes since that checkpoint are no longer kept; the message gives the oldest usable checkpoint."""


class FeedMissing(RowmillError, LookupError):
    """The store publishes no feed."""


class FeedGap(RowmillError, LookupError):
    """The next frame of a feed is gone: the follower must start again from the last checkpoint."""


class FeedFailed(RowmillError, OSError):
    """Publishing stopped until the next checkpoint: writing the feed failed or was too slow."""


class StoreSuperseded(RowmillError):
    """The checkpoint that a reader has open was replaced; open the store again."""


class StalenessTimeout(RowmillError, TimeoutError):
    """A row stayed beyond its staleness bound until the deadline; the message names the row and the step holding it."""


class StepConflict(RowmillError):
    """A training step cannot continue: it lost its rows to an older step, or it had already ended."""


class RemoteError(RowmillError, OSError):
    """A request to an object store failed, retries included; the message gives URL and cause."""


class RemoteConflict(RemoteError):
    """Another writer pushes or pushed to the same URL: its checkpoints are not this store's history."""


class CheckpointMissing(RowmillError, LookupError):
    """There is no such checkpoint; the message lists the existing ones."""


class UnsavedRows(UserWarning):
    """The block of an open store ended with changed rows that no checkpoint holds; the message says how many and why."""


class CheckpointInDoubt(RowmillError):
    """A store has a checkpoint that was prepared but not committed; choose one with `rowmill.open(at=...)`."""


class TooManySteps(RowmillError):
    """More training steps are open at once than the store allows."""


class ExchangeFailed(RowmillError):
    """A rank failed in an exchange, or ranks are in different calls; every rank raises the same error."""


class RankLost(RowmillError):
    """Another rank of a distributed run ended or does not respond; the message gives its step and last error, if known."""


class ServingError(RowmillError):
    """A worker cannot serve, or a request to it failed."""


class StorageError(RowmillError):
    """A storage node cannot serve, or does not answer as it should."""
