"""The store: one folder of rows, opened with one budget of memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from rowmill import _core, init
from rowmill.errors import InvalidInput
from rowmill.optim.specs import initializer_to_dict, optimizer_from_dict, optimizer_to_dict
from rowmill.size import check_int, parse_size
from rowmill.store.changes import Changes
from rowmill.store.eviction import admission_to_dict, eviction_to_dict
from rowmill.store.remote import KEEP_MAX
from rowmill.store.steps import ExplicitStep, ForwardStep, StepKeeper
from rowmill.store.tables import Destination, Dtype, Ids, Table, Ticket, as_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.eviction import Admission, Eviction


THREADS_MAX = 1024


def open(
    path_or_uri: str | os.PathLike[str],
    *,
    memory: int | str = "2GiB",
    row_memory: int | str | None = None,
    read_only: bool = False,
    at: int | None = None,
    create: bool = True,
    threads: int | None = None,
    seed: int = 0,
    wait_deadline_s: float = 30.0,
    history: int | str = "64MiB",
    feed: int | str | None = None,
    feed_interval_s: float = 0.1,
    feed_waiting: int | str = "64MiB",
    io: str = "auto",
) -> Store:
    """Open a store, or make one.

    Args:
        path_or_uri: A folder, or a `file://` URI of one.
        memory: Bytes for everything the store keeps in memory, as a number or a size ("2GiB").
        row_memory: Expert: bytes for rows and the log's write buffers alone, within `memory`.
        read_only: Read the last checkpoint; another process may have the store open for writing.
        at: Number of the checkpoint to open at, for a store that may have one prepared and not committed (see
            `Store.prepare`); 0 is none. A store opened for writing keeps that one and lets the other go.
        create: Make the store if there is none.
        threads: Threads that share a large batch; None: as many as the machine has cores.
        seed: Seed of the initializers, fixed when the store is made.
        wait_deadline_s: Longest wait, in seconds, for a row beyond its staleness bound.
        history: Bytes on disk for lists of what changed, beyond what a checkpoint needs: how far back
            `changes` can ask.
        feed: Bytes on disk for a feed of what changes, which `rowmill.ChangeFeed` follows in other processes
            ("256MiB"); None: nothing is published.
        feed_interval_s: Longest time between two rounds of publishing, in seconds.
        feed_waiting: Bytes of memory, beyond `memory`, for rows that leave memory and ids that are deleted between
            two rounds. With more of them nothing is published until the next checkpoint, from which followers
            start again.
        io: "auto" (io_uring where the system allows it) or "pread".

    Examples:
        >>> import tempfile, rowmill
        >>> with rowmill.open(tempfile.mkdtemp(), memory="16MiB") as store:
        ...     words = store.table("words", dim=2, optimizer=rowmill.optim.SGD(lr=0.5))
        ...     words.put([7], [[1.0, 1.0]])
        ...     words.rmw([7, 7], [[1.0, 1.0], [1.0, 1.0]])
        ...     words.get([7]).tolist()
        [[0.0, 0.0]]
    """
    memory = parse_size(memory, name="memory")
    if threads is None:
        threads = len(os.sched_getaffinity(0))
    core = _core.Store.open(
        str(_local_path(path_or_uri)),
        memory=memory,
        row_memory=None if row_memory is None else parse_size(row_memory, name="row_memory"),
        threads=check_int(threads, "threads", 1, THREADS_MAX),
        seed=check_int(seed, "seed", 0, 2**64 - 1),
        wait_deadline_s=wait_deadline_s,
        create=create and not read_only,
        read_only=read_only,
        at=None if at is None else check_int(at, "at", 0, 2**63 - 1),
        history=parse_size(history, name="history"),
        feed_bytes=None if feed is None else parse_size(feed, name="feed"),
        feed_interval_s=feed_interval_s,
        feed_waiting=parse_size(feed_waiting, name="feed_waiting"),
        io=io,
    )
    return Store(core, str(path_or_uri), memory)


class Store:
    """An open store; tables are made by `table`.

    Changes are durable from the next `checkpoint` on: a store opens at its last complete one, and
    `close`, or leaving the `with` block, saves nothing by itself.
    """

    def __init__(self, core: _core.Store, location: str, memory: int) -> None:
        self.core = core
        self.location = location
        self.memory = memory
        """The budget, in bytes."""
        self.seed: int = core.seed
        """Seed of the initializers: that of the store's first opening."""
        self.read_only: bool = core.read_only
        self.steps = StepKeeper(core)
        # Weak, so that a store nobody uses is let go at once and not by the garbage collector.
        self._tables: WeakValueDictionary[str, Table] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Tables.

    def table(
        self,
        name: str,
        *,
        dim: int,
        optimizer: OptimizerSpec,
        dtype: Dtype = "fp32",
        initializer: Initializer | None = None,
        staleness_bound: int | None = 0,
        num_rows: int | None = None,
        eviction: Eviction | None = None,
        admission: Admission | None = None,
    ) -> Table:
        """The table of that name, made if it does not exist; an existing one must agree.

        Args:
            name: Any name.
            dim: Weights per row.
            optimizer: Updates the rows; its state lies beside their weights. Its rate is that of the next
                updates, whatever it was before.
            dtype: How weights are stored: "fp32"; "bf16" for half the bytes, at 8 significant bits; or "split-bf16"
                for the bytes of "fp32" in two planes. Rows are read as float32 and updated in it in any case. An
                updated bf16 weight is rounded up or down at random, by the seed of the store, so that small steps
                are not lost. Of split-bf16 weights lookups read the upper halves, which are bfloat16; everything
                else, updates included, reads and writes all bits, as of "fp32".
            initializer: How missing rows are born; None: normal with standard deviation 0.01.
            staleness_bound: A training get may proceed while at most this many gets of the row wait
                for their update: 0 is synchronous, None unbounded.
            num_rows: Ids are 0..num_rows (indexed directly, the fastest); None: any 64-bit id.
            eviction: Which rows are removed for good; None: only those that `delete` names.
            admission: Which ids get a row; None: every id that training asks for.
        """
        if initializer is None:
            initializer = init.Normal(std=0.01)
        core = self.core.table(
            name,
            dim=check_int(dim, "dim", 0, 2**32 - 1),
            dtype=dtype,
            optimizer=optimizer_to_dict(optimizer),
            initializer=initializer_to_dict(initializer),
            staleness_bound=staleness_bound,
            dense_rows=None if num_rows is None else check_int(num_rows, "num_rows", 0, 2**63),
            eviction=eviction_to_dict(eviction),
            admission=admission_to_dict(admission),
        )
        table = self._wrap(core, optimizer)
        table.lr = optimizer.lr
        return table

    def open_table(self, name: str) -> Table:
        """An existing table, with the spec it was made with."""
        core = self.core.open_table(name)
        return self._wrap(core, optimizer_from_dict(core.optimizer))

    def table_names(self) -> list[str]:
        """Names of all tables."""
        return self.core.table_names()

    def lookahead(
        self, ids: Mapping[Table, Ids], *, into: Destination = "buffer", steps: int = 1
    ) -> bool:
        """Bring rows that will be read soon into memory; returns at once, takes no clocks.

        Rows whose clock somebody holds are left alone: their update brings them in.

        Args:
            ids: For each table the ids of coming batches, int64 of any shape. One call for all tables
                is one announcement, of which only so many can wait.
            into: "buffer" keeps rows until the step that needs them is over (they take at most half of
                the rows' memory), "cache" lets them compete with other rows.
            steps: How many steps from now the ids will be asked for, 1 to 63: 1 is the next step to
                begin. Buffered rows that are not read when their step begins are left to it. Outside
                steps, rows are kept until they are first read.

        Returns:
            False if rows were left out because too many announcements wait.
        """
        flat = [as_ids(table_ids)[0] for table_ids in ids.values()]
        return self.core.lookahead(
            [table.core for table in ids], flat, into, check_int(steps, "steps", 1, 2**63 - 1)
        )

    def _wrap(self, core: _core.Table, optimizer: OptimizerSpec) -> Table:
        # One object per table: its rate, its optimizer and its gradients of a step have one home.
        table = self._tables.get(core.name)
        if table is None:
            self._tables[core.name] = table = Table(self, core, optimizer)
        return table

    # Steps.

    @property
    def event_time(self) -> int | None:
        """The latest event time that a step said, in seconds; None before the first."""
        return self.core.event_time

    def step(self, *, event_time: int | None = None) -> ExplicitStep:
        """A training step with explicit ends: `with store.step(): forward; backward`.

        Gradients of all backward passes within are summed and applied once when the block ends; an
        exception drops them. Either way every clock is released. Without it, each backward pass is
        a step.

        Args:
            event_time: When what the step learns from happened, in whole seconds since a moment of your choice, the
                same in every run. Tables with `TTL(seconds=...)` go by it; steps that say none take the latest.
        """
        return ExplicitStep(self.steps, _event_time(event_time))

    def forward(self, *, event_time: int | None = None) -> ForwardStep:
        """A training step whose backward comes later: `with store.forward(): forward`.

        The lookups of the block are a step of their own, which ends when their backward is over, on
        whichever thread. So one thread may look up rows of several steps before the first of them is
        updated; how far rows may lag is up to the staleness bound of their table. At bound 0 the
        lookup of a row waits for the backward of an earlier step that has it: let that come from
        another thread, or the wait ends with `StalenessTimeout`.

        Args:
            event_time: As for `step`.
        """
        return ForwardStep(self.steps, _event_time(event_time))

    def ticket(self, *, event_time: int | None = None) -> Ticket:
        """A hold on clocks for `get_or_init`, `put` and `rmw` of tables; modules need none."""
        return Ticket(self.core.ticket(_event_time(event_time)))

    # The whole store.

    def checkpoint(self, *, attachments: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Make everything durable at once, with named bytes of the caller beside the rows.

        Attachments are those of this checkpoint alone: earlier ones are gone.

        Returns:
            What was written: `epoch` (its number), `rows_saved`, `log_bytes`, `file_bytes`,
            `stall_s` (how long changes were held up) and `duration_s`.
        """
        self.steps.flush_all()
        return self.core.checkpoint(list((attachments or {}).items()))

    def prepare(self, *, attachments: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """As `checkpoint`, but the last checkpoint stays what it is until `commit`, and both are durable.

        For stores that are parts of one larger checkpoint: all prepare, somebody writes down the numbers of all, and
        all commit. A crash in between leaves both, and the store opens at the one that `rowmill.open(..., at=number)`
        names. `rowmill.distributed.Checkpoint` does this for the stores of many ranks.
        """
        self.steps.flush_all()
        return self.core.prepare(list((attachments or {}).items()))

    def commit(self) -> dict[str, Any]:
        """Make the prepared checkpoint the last one."""
        return self.core.commit()

    def push(self, url: str, *, keep: int = 3) -> dict[str, Any]:
        """Copy the last checkpoint to an object store, while work goes on.

        What earlier checkpoints there have in common with it is not uploaded again. The checkpoint is there, whole,
        when this returns, and not at all when it raises. Another thread may train and make checkpoints meanwhile.

        Args:
            url: `s3://bucket/path`, `gs://bucket/path`, `az://container/path` or `file:///path`, for this store
                alone; `rowmill.store.remote` says where credentials come from.
            keep: Keep so many checkpoints there, and remove older ones.

        Returns:
            What was done: `epoch` (its number), `parts_uploaded`, `bytes_uploaded`, `bytes` (of the checkpoint)
            and `objects_removed`.
        """
        return self.core.push(url, check_int(keep, "keep", 1, KEEP_MAX))

    def changes(self, since: int) -> Changes:
        """What changed from checkpoint `since` to the last one; 0: all rows. See `rowmill.Changes`."""
        return Changes(self.core.changes(check_int(since, "since", 0, 2**63 - 1)))

    def publish(self) -> int:
        """Publish at once what has changed, in a store opened with a `feed`; the feed's last sequence number."""
        self.steps.flush()
        return self.core.publish()

    def attachment_names(self) -> list[str]:
        """Names of the last checkpoint's attachments."""
        return self.core.attachment_names()

    def attachment(self, name: str) -> bytes | None:
        """Bytes attached to the last checkpoint, or None."""
        return self.core.attachment(name)

    def stats(self) -> dict[str, Any]:
        """Figures of the store; counters run from its opening.

        Memory, in bytes: `memory_budget`, `index_bytes`, `row_bytes`, `row_limit`, `overhead_bytes`,
        `buffer_bytes`. Device: `device_live_bytes`, `device_used_bytes`, `device_pinned_bytes`,
        `device_free_bytes`, `device_bytes_written`, `device_blocks_read`, `corrupt_blocks`. Rows:
        `rows_resident`, `rows_dirty`, `evictions`, `deletes`. Feed: `feed_rows` (rows and
        deletes published), `feed_sequence`, `feed_failure` (why nothing is published until the next
        checkpoint, if that is so), `feed_waiting_bytes`. Reads: `calls`, `lookups` (ids),
        `rows_looked_up` (distinct per call), `cold_reads`, `cold_wait_ns`, `hit_rate`. Updates:
        `updates` (calls), `rows_updated`. Clocks: `clock_waits`, `clock_wait_ns`, `tickets` (open
        steps), `staleness` (clocks taken, by gets outstanding before). Lookahead: `lookahead_rows`,
        `lookahead_loaded`, `lookahead_late`, `lookahead_dropped`, `lookahead_errors`. Also `compactions`,
        `rows_compacted`, `checkpoints`, `io`. `tables` has per name: `group`, `rows`, `row_bytes`,
        and since the table was made, restarts included: `accesses`, `births`, `deletes`, `evicted` (for
        good, by its rule; the store's `evictions` only left memory), `steps`. `groups` has per
        number: `row_places_used` (numbers of rows on the device, and of old versions not cleaned yet),
        `row_places` (the limit) and `row_places_share` (used / limit). New rows raise
        `RowPlacesExhausted` before the share reaches 1: some places are kept for checkpoints.
        """
        return self.core.stats()

    def metrics(self) -> str:
        """The same for Prometheus, in its text format."""
        return self.core.metrics()

    def close(self) -> None:
        """Let go of the folder and of the memory. Saves nothing: what changed since the last `checkpoint` is lost."""
        self.core.close()


def _event_time(time: int | None) -> int | None:
    return None if time is None else check_int(time, "event_time", 0, 2**62)


def _local_path(path_or_uri: str | os.PathLike[str]) -> Path:
    if not isinstance(path_or_uri, str):
        return Path(path_or_uri)
    if not path_or_uri:
        raise InvalidInput("path_or_uri must name a folder, got ''")
    parts = urlsplit(path_or_uri)
    if "://" not in path_or_uri:
        return Path(path_or_uri)
    if parts.scheme != "file":
        raise InvalidInput(
            f"cannot open {path_or_uri!r}: a store lives in a folder; give its path or a file:// URI"
        )
    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(f"{path_or_uri!r} names host {parts.netloc!r}: write file:///path")
    return Path(unquote(parts.path))
