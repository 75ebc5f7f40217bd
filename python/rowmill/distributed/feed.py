"""The feeds of all ranks of a run, merged to one order that is cut at the checkpoints of all ranks.

Every rank's store publishes a feed of its own (`rowmill.ChangeFeed`). A row is in the feed of its owner, so the order of its
changes is that of this feed, and feeds may be merged in any order between two checkpoints. A feed whose next frame is that of
a checkpoint waits until all feeds are there. A follower then has the rows of all ranks as of one step.

Invariants:

- A feed that has read the frame of a checkpoint is read further only when all others have read theirs, or when the next
  frame is a rollback: then that checkpoint was prepared, but never written.
- After a rollback to a checkpoint, its frame is no reason to wait: ranks that had published nothing since do not repeat it.
- Rows of replicated tables are taken from rank 0.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rowmill import _core
from rowmill.distributed._checkpoint.checkpoint import part_folder
from rowmill.distributed._checkpoint.manifest import Manifest
from rowmill.errors import (
    FeedGap,
    FeedMissing,
    InvalidInput,
    RowmillError,
    StoreMissing,
    StoreSuperseded,
)
from rowmill.store.changes import Changes
from rowmill.store.feed import (
    FeedCheckpoint,
    FeedDeletes,
    FeedRollback,
    FeedRows,
    feed_event,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator

    from rowmill.store.feed import FeedEvent

_LOOK_S = 0.5
"""Interval at which an idle follower reads the manifest, which tells that rows have moved to other ranks."""


class FeedOfRanks:
    """The feed of a run of many ranks, each of which has opened its store with `feed`.

    It reads files in the folder of the run's rows, as `ChangeFeed` does. `sequence`, and `to` of a rollback, are numbers in
    the feed of one rank: save `position` after each event instead, and continue from it.

    Args:
        folder: Folder of a `rowmill.distributed.Checkpoint`.

    Attributes:
        position: Where to continue after the last event; None before the first checkpoint was read completely.

    Examples:
        Keep a copy of all rows, in another process than the ranks::

            feed = rowmill.distributed.FeedOfRanks("run/store")
            for event in feed.follow(position):
                apply(event)
                save(feed.position)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._parts: list[_Part] = []
        self._generation = 0
        self._copied: frozenset[str] = frozenset()
        self._epoch = 0
        """The last checkpoint of all ranks, or the one to which the run went back."""
        self._rolls_back = False

    def __repr__(self) -> str:
        return f"FeedOfRanks({str(self.folder)!r})"

    @property
    def position(self) -> str | None:
        """Where to continue: generation of the parts, last checkpoint, and the last frame of each rank."""
        if not self._parts:
            return None
        frames = ",".join(str(part.applied) for part in self._parts)
        return f"{self._generation}:{self._epoch}:{frames}"

    def follow(
        self, since: str | None = None, *, poll_s: float = 0.005, timeout_s: float | None = None
    ) -> Iterator[FeedEvent]:
        """Yield events in order; block until the next event is published.

        After a `FeedCheckpoint`, whose `epoch` is the number of the checkpoint of all ranks, a follower that has applied all
        events has the rows of this checkpoint, once it is durable.

        Args:
            since: `position` after the last event that was applied. None is for an empty copy: the first events are all rows
                of the last checkpoint, for which this waits, and then its `FeedCheckpoint`.
            poll_s: Interval in seconds at which the files are read for new events.
            timeout_s: Return after this many seconds without an event; None: never; 0: after the events already published.

        Raises:
            InvalidInput: `poll_s` is 0 or negative, or `since` is no position.
            FeedGap: The next frame of a rank was deleted, a feed was started again, or rows have moved to other ranks: follow
                again with `since=None`, from an empty copy.
            FeedMissing: A rank, which is named, publishes no feed.
            StoreMissing: There is no such folder, or it lacks the part of a rank, which is named.
            StoreSuperseded: While the rows of the checkpoint were read, the run replaced it. Begin again.
            StoreCorrupt: A frame is damaged. No event of this frame or a later one of its rank was yielded.
        """
        if poll_s <= 0:
            raise InvalidInput(f"poll_s must be > 0, got {poll_s}")
        self._parts = []
        idle_since = looked = time.monotonic()
        while (manifest := self._manifest()) is None:
            if timeout_s is not None and time.monotonic() - idle_since >= timeout_s:
                return
            time.sleep(poll_s)
        if since is None:
            yield from self._copy(manifest)
        else:
            self._continue(manifest, since)
        while True:
            found = False
            for event in self._published():
                found = True
                yield event
            now = time.monotonic()
            if found:
                idle_since = now
                continue
            if now - looked >= _LOOK_S:
                looked = now
                self._look()
            if timeout_s is not None and now - idle_since >= timeout_s:
                return
            time.sleep(poll_s)

    # The beginning.

    def _manifest(self) -> Manifest | None:
        if not self.folder.is_dir():
            raise StoreMissing(f"{self.folder} is not a folder: give the folder of a run's rows")
        return Manifest.load(self.folder)

    def _see(self, manifest: Manifest) -> None:
        placed = manifest.placements.items()
        self._copied = frozenset(name for name, placement in placed if placement == "replicated")

    def _copy(self, manifest: Manifest) -> Generator[FeedEvent]:
        """Yield the rows of the last checkpoint, and begin to read the frames behind it."""
        self._generation = manifest.generation
        self._see(manifest)
        parts: list[_Part] = []
        for rank, epoch in enumerate(manifest.epochs):
            folder = part_folder(self.folder, manifest.generation, rank)
            with _of_rank(rank, folder):
                reader = _core.FeedReader.at_checkpoint(str(folder), epoch)
            shift = epoch - manifest.number
            parts.append(_Part(rank, folder, reader, shift=shift, at=manifest.number))
        try:
            for part, epoch in zip(parts, manifest.epochs, strict=True):
                changes = Changes(_core.Changes.open(str(part.folder), 0, epoch))
                steps = {table.name: table.steps for table in changes.tables()}
                for rows in changes:
                    if self._is_taken(part, rows.table):
                        yield FeedRows(0, 0, rows.table, steps[rows.table], rows.ids, rows.weights)
        except RowmillError as error:
            if Manifest.load(self.folder) != manifest:
                raise StoreSuperseded(
                    f"{self.folder}: the run replaced checkpoint {manifest.number} while it was read: begin again"
                ) from error
            raise
        self._parts, self._epoch = parts, manifest.number
        yield FeedCheckpoint(parts[0].applied, 0, self._epoch)

    def _continue(self, manifest: Manifest, since: str) -> None:
        """Begin to read behind a position."""
        try:
            generation, epoch, frames = since.split(":")
            self._epoch, sequences = int(epoch), [int(frame) for frame in frames.split(",")]
            moved = int(generation) != manifest.generation
        except ValueError:
            raise InvalidInput(
                f"since must be a position such as 1:12:740,815, got {since!r}: pass FeedOfRanks.position"
            ) from None
        if moved or len(sequences) != len(manifest.epochs):
            raise self._moved()
        self._generation = manifest.generation
        self._see(manifest)
        parts: list[_Part] = []
        for rank, sequence in enumerate(sequences):
            folder = part_folder(self.folder, manifest.generation, rank)
            with _of_rank(rank, folder):
                reader = _core.FeedReader.open(str(folder), sequence)
            shift = manifest.epochs[rank] - manifest.number
            at = self._epoch if _is_at(folder, self._epoch + shift, sequence) else None
            parts.append(_Part(rank, folder, reader, shift=shift, at=at))
        self._parts = parts

    # Merging.

    def _published(self) -> Generator[FeedEvent]:
        """Yield what can be read now of each feed, up to its next checkpoint."""
        for part in self._parts:
            while (event := part.peek()) is not None:
                if part.waits and not isinstance(event, FeedRollback):
                    break
                match event:
                    case FeedCheckpoint():
                        part.arrive(event.epoch, waits=event.epoch != self._epoch)
                        if self._all_are_at(event.epoch):
                            yield self._leave(event)
                    case FeedRollback():
                        part.take()
                        is_first = not self._rolls_back or event.epoch != self._epoch
                        self._rolls_back, self._epoch = True, event.epoch
                        if is_first:
                            yield event
                    case FeedRows() | FeedDeletes():
                        part.take()
                        if self._is_taken(part, event.table):
                            yield event

    def _all_are_at(self, epoch: int) -> bool:
        if any(part.at != epoch for part in self._parts):
            return False
        # The run can have gone back since the frame of a rank was read.
        return not any(isinstance(part.peek(), FeedRollback) for part in self._parts)

    def _leave(self, last: FeedCheckpoint) -> FeedCheckpoint:
        for part in self._parts:
            part.leave()
        self._epoch, self._rolls_back = last.epoch, False
        return FeedCheckpoint(self._parts[0].applied, last.published_ns, last.epoch)

    def _is_taken(self, part: _Part, table: str) -> bool:
        return part.rank == 0 or table not in self._copied

    def _look(self) -> None:
        """Raise if the run has other parts now, or lacks one."""
        manifest = self._manifest()
        if manifest is None or manifest.generation != self._generation:
            raise self._moved()
        self._see(manifest)
        for part in self._parts:
            if not part.folder.is_dir():
                raise _lacks(part.rank, part.folder)

    def _moved(self) -> FeedGap:
        return FeedGap(
            f"{self.folder}: the rows have moved to other ranks, whose feeds are new: follow again from an empty copy"
        )


class _Part:
    """The feed of a rank, whose numbers of checkpoints are larger by `shift` than those of all ranks.

    Attributes:
        at: The checkpoint of all ranks whose rows a follower has of this rank; None between checkpoints.
        waits: Whether it has arrived at a checkpoint, and other ranks have not.
        applied: The last frame, in the order of all ranks, that was taken from this feed.
    """

    def __init__(
        self, rank: int, folder: Path, reader: _core.FeedReader, *, shift: int, at: int | None
    ) -> None:
        self.rank = rank
        self.folder = folder
        self.at = at
        self.waits = False
        self.applied = self._read = reader.position
        self._reader = reader
        self._shift = shift
        self._next: FeedEvent | None = None

    def peek(self) -> FeedEvent | None:
        """The next event, with the numbers of checkpoints of all ranks, without taking it; None if no more are published yet."""
        if self._next is None:
            with _of_rank(self.rank, self.folder):
                found = self._reader.poll()
            event = None if found is None else feed_event(found)
            if isinstance(event, FeedCheckpoint | FeedRollback):
                event = replace(event, epoch=event.epoch - self._shift)
            self._next = event
        return self._next

    def take(self) -> None:
        """Take the next event, which is not a checkpoint."""
        self.at, self.waits = None, False
        self.applied = self._taken()

    def arrive(self, epoch: int, *, waits: bool) -> None:
        """Take the next event, which is this checkpoint; if it waits, the event does not count before `leave`."""
        self.at, self.waits = epoch, waits
        self._read = self._taken()
        if not waits:
            self.applied = self._read

    def leave(self) -> None:
        """All ranks have arrived."""
        if self.waits:
            self.waits, self.applied = False, self._read

    def _taken(self) -> int:
        assert self._next is not None
        sequence, self._next = self._next.sequence, None
        return sequence


def _is_at(folder: Path, epoch: int, sequence: int) -> bool:
    """Whether a frame is the last one of a checkpoint."""
    try:
        return _core.FeedReader.at_checkpoint(str(folder), epoch).position == sequence
    except FeedGap:
        return False


@contextmanager
def _of_rank(rank: int, folder: Path) -> Generator[None]:
    """Name the rank, and what to do, in errors of its feed."""
    try:
        yield
    except FeedGap as error:
        raise FeedGap(f"rank {rank}: {error}") from None
    except StoreMissing:
        raise _lacks(rank, folder) from None
    except FeedMissing:
        if not folder.is_dir():
            raise _lacks(rank, folder) from None
        raise FeedMissing(
            f"rank {rank} publishes no feed in {folder}: train with --feed, for example --feed 256MiB; if its feed was "
            "removed, resume the run, and follow again from an empty copy"
        ) from None


def _lacks(rank: int, folder: Path) -> StoreMissing:
    return StoreMissing(
        f"the part of rank {rank} is gone, {folder}: put it back, or restore the whole folder from a copy"
    )
