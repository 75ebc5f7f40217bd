"""Following what a training process changes, from another process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill import _core
from rowmill.errors import InvalidInput, StoreMissing
from rowmill.size import check_int
from rowmill.store.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True)
class FeedRows:
    """Rows are new or were written; of an id that comes twice the last weights hold."""

    sequence: int
    published_ns: int
    """When, in nanoseconds since 1970 by the clock of the machine that trains; 0 in the copy of a checkpoint."""
    table: str
    step: int
    """Updates of the table when the rows were copied."""
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    """`[n, dim]`."""


@dataclass(frozen=True)
class FeedDeletes:
    """Rows are gone."""

    sequence: int
    published_ns: int
    table: str
    step: int
    ids: NDArray[np.int64]


@dataclass(frozen=True)
class FeedCheckpoint:
    """Who has applied everything up to here has the rows of checkpoint `epoch`, once it is durable."""

    sequence: int
    published_ns: int
    epoch: int


@dataclass(frozen=True)
class FeedRollback:
    """The store went back to checkpoint `epoch`: what was published after frame `to` did not happen.

    The rows concerned come next, as the checkpoint has them, and then the `FeedCheckpoint`: who goes on applying
    what comes has undone it there.
    """

    sequence: int
    published_ns: int
    to: int
    epoch: int


FeedEvent = FeedRows | FeedDeletes | FeedCheckpoint | FeedRollback
"""What a follower is told."""


class ChangeFeed:
    """The feed of a store that is opened for writing elsewhere with `rowmill.open(..., feed=...)`.

    Only files of the store's folder are read. A follower keeps the `sequence` of the last event it has applied and
    goes on from there after a restart of its own.

    Args:
        path: Folder of the store.

    Examples:
        >>> import tempfile, rowmill
        >>> folder = tempfile.mkdtemp()
        >>> store = rowmill.open(folder, memory="16MiB", feed="32MiB")
        >>> words = store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=0.5))
        >>> words.put([7], [[1.0, 1.0]])
        >>> last = store.publish()
        >>> for event in rowmill.ChangeFeed(folder).follow(timeout_s=0):
        ...     if isinstance(event, rowmill.FeedRows):
        ...         print(event.table, event.ids, event.weights)
        words [7] [[1. 1.]]
        >>> store.close()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"ChangeFeed({self.path!r})"

    def follow(
        self,
        since: int | None = None,
        *,
        poll_s: float = 0.005,
        timeout_s: float | None = None,
    ) -> Iterator[FeedEvent]:
        """Events in order, waiting for the next one.

        Args:
            since: `sequence` of the last event that was applied. None is for an empty copy: it begins with all
                rows of the last checkpoint, which have no sequence number of their own (0), and the checkpoint
                behind them has.
            poll_s: How often to look for more, in seconds.
            timeout_s: End after this many seconds without an event; None: never, 0: with what is there.

        Raises:
            FeedGap: What comes next has fallen away, or the feed began anew: follow again with
                `since=None`, from an empty copy.
            FeedMissing: The store publishes no feed.
            StoreCorrupt: A frame is damaged. Nothing of it or behind it was handed out.
        """
        if poll_s <= 0:
            raise InvalidInput(f"poll_s must be above 0, got {poll_s}")
        if since is None:
            reader = yield from self._copy()
        else:
            reader = _core.FeedReader.open(self.path, check_int(since, "since", 0, 2**63 - 1))
        idle_since = time.monotonic()
        while True:
            event = reader.poll()
            if event is not None:
                yield _event(event)
                idle_since = time.monotonic()
                continue
            if timeout_s is not None and time.monotonic() - idle_since >= timeout_s:
                return
            time.sleep(poll_s)

    def _copy(self) -> Generator[FeedEvent, None, _core.FeedReader]:
        """The last checkpoint; returns what follows it."""
        try:
            changes = Changes(self.path, since=0)
        except StoreMissing:
            # Before the first checkpoint the feed says everything.
            return _core.FeedReader.at_checkpoint(self.path, 0)
        reader = _core.FeedReader.at_checkpoint(self.path, changes.until)
        steps = {table.name: table.steps for table in changes.tables()}
        for rows in changes:
            yield FeedRows(0, 0, rows.table, steps[rows.table], rows.ids, rows.weights)
        yield FeedCheckpoint(reader.position, 0, changes.until)
        return reader


def _event(event: dict[str, Any]) -> FeedEvent:
    sequence, published_ns = event["sequence"], event["published_ns"]
    match event["kind"]:
        case "rows":
            ids = np.frombuffer(event["ids"], np.int64)
            weights = np.frombuffer(event["weights"], np.float32).reshape(len(ids), event["dim"])
            return FeedRows(sequence, published_ns, event["table"], event["step"], ids, weights)
        case "deleted":
            ids = np.frombuffer(event["ids"], np.int64)
            return FeedDeletes(sequence, published_ns, event["table"], event["step"], ids)
        case "checkpoint":
            return FeedCheckpoint(sequence, published_ns, event["epoch"])
        case "rollback":
            return FeedRollback(sequence, published_ns, event["to"], event["epoch"])
        case kind:
            raise AssertionError(f"the binding knows an event {kind!r}")
