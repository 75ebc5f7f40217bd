"""Change feed: follow the changes of a training process from another process."""

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
    """Rows are new or were written. If an id occurs twice, its last weights are valid."""

    sequence: int
    published_ns: int
    """Time of publishing in nanoseconds since 1970, by the training machine's clock; 0 for rows copied from a checkpoint."""
    table: str
    step: int
    """Optimizer steps of the table when the rows were copied."""
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    """`[n, dim]`."""


@dataclass(frozen=True)
class FeedDeletes:
    """Rows were deleted."""

    sequence: int
    published_ns: int
    table: str
    step: int
    ids: NDArray[np.int64]


@dataclass(frozen=True)
class FeedCheckpoint:
    """A follower that has applied all events so far has the rows of checkpoint `epoch`, once it is durable."""

    sequence: int
    published_ns: int
    epoch: int


@dataclass(frozen=True)
class FeedRollback:
    """The store resumed from checkpoint `epoch`: changes published after frame `to` are void.

    The next events set the affected rows to their values in the checkpoint, and a `FeedCheckpoint` follows. A
    follower that applies events in order therefore ends in the correct state.
    """

    sequence: int
    published_ns: int
    to: int
    epoch: int


FeedEvent = FeedRows | FeedDeletes | FeedCheckpoint | FeedRollback
"""An event of the feed."""


class ChangeFeed:
    """The feed of a store that another process opened for writing with `rowmill.open(..., feed=...)`.

    It only reads files in the store's folder. A follower saves the `sequence` of the last event that it applied, and
    after a restart continues from that event.

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
        """Yield events in order; block until the next event is published.

        Args:
            since: `sequence` of the last event that was applied. None is for an empty copy: the first events
                are all rows of the last checkpoint, with sequence 0, and then its `FeedCheckpoint`, with the
                sequence to continue from.
            poll_s: Interval in seconds at which the files are read for new events.
            timeout_s: Return after this many seconds without an event; None: never; 0: after the events
                already published.

        Raises:
            InvalidInput: `poll_s` is 0 or negative.
            FeedGap: The next frame was deleted, or the feed was started again: follow again with
                `since=None`, from an empty copy.
            FeedMissing: The store publishes no feed.
            StoreCorrupt: A frame is damaged. No event of this frame or a later one was yielded.
        """
        if poll_s <= 0:
            raise InvalidInput(f"poll_s must be > 0, got {poll_s}")
        if since is None:
            reader = yield from self._copy()
        else:
            reader = _core.FeedReader.open(self.path, check_int(since, "since", 0, 2**63 - 1))
        idle_since = time.monotonic()
        while True:
            event = reader.poll()
            if event is not None:
                yield feed_event(event)
                idle_since = time.monotonic()
                continue
            if timeout_s is not None and time.monotonic() - idle_since >= timeout_s:
                return
            time.sleep(poll_s)

    def _copy(self) -> Generator[FeedEvent, None, _core.FeedReader]:
        """Yield the rows of the last checkpoint; return a reader of the frames after it."""
        try:
            changes = Changes(self.path, since=0)
        except StoreMissing:
            # Before the first checkpoint the feed holds every change.
            return _core.FeedReader.at_checkpoint(self.path, 0)
        reader = _core.FeedReader.at_checkpoint(self.path, changes.until)
        steps = {table.name: table.steps for table in changes.tables()}
        for rows in changes:
            yield FeedRows(0, 0, rows.table, steps[rows.table], rows.ids, rows.weights)
        yield FeedCheckpoint(reader.position, 0, changes.until)
        return reader


def feed_event(event: dict[str, Any]) -> FeedEvent:
    """The event that the binding describes."""
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
            raise AssertionError(f"the binding returned an event of unknown kind {kind!r}")
