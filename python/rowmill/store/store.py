"""The store: a folder of tables, opened with one memory budget."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from rowmill import _core, init
from rowmill.errors import CheckpointInDoubt, InvalidInput, StoreForked, UnsavedRows
from rowmill.optim.specs import initializer_to_dict, optimizer_from_dict, optimizer_to_dict
from rowmill.size import check_int, parse_size
from rowmill.store import node_rows
from rowmill.store.changes import Changes
from rowmill.store.eviction import admission_to_dict, eviction_to_dict
from rowmill.store.remote import KEEP_MAX
from rowmill.store.sharding import Sharding
from rowmill.store.steps import ExplicitStep, ForwardStep, StepKeeper
from rowmill.store.tables import Destination, Dtype, Ids, Table, Ticket, as_ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.eviction import Admission, Eviction, TableRules
    from rowmill.store.versions import NewVersion


THREADS_MAX = 256


def open(
    path_or_uri: str | os.PathLike[str],
    *,
    memory: int | str = "2GiB",
    row_memory: int | str | None = None,
    read_only: bool = False,
    at: int | None = None,
    version: str | int | None = None,
    create: bool = True,
    threads: int | None = None,
    seed: int = 0,
    wait_deadline_s: float = 30.0,
    history: int | str = "64MiB",
    feed: int | str | None = None,
    feed_interval_s: float = 0.1,
    feed_waiting: int | str = "64MiB",
    io: str = "auto",
    access: str | os.PathLike[str] | None = None,
    alter: Mapping[str, TableRules] | None = None,
) -> Store:
    """Open a store, or create one; or open the rows of a storage node.

    The rows of a node can only be read: modules over its tables evaluate and are exported, and training raises
    `StoreReadOnly`. `memory` and the arguments of a folder do not apply.

    As a context manager, the store makes a checkpoint when its block ends without an exception, if rows changed. It makes
    none, and warns with `UnsavedRows`, after an exception, if the last checkpoint has attachments, or with `at`: rows would
    no longer match the rest of that checkpoint.

    Args:
        path_or_uri: A folder, or a `file://` URI of one; or the URL of a storage node's namespace of rows,
            `nvme+tcp://HOST:PORT/NQN`, with `?namespace=N` where the subsystem has several.
        memory: Memory budget of the store, in bytes or as a size ("2GiB").
        row_memory: Limit for rows and the log's write buffers alone, within `memory`; for experiments.
        read_only: Read the last checkpoint; another process may have the store open for writing.
        at: Number of the checkpoint to open at, for a store that may have one prepared but not committed (see
            `Store.prepare`); 0: no checkpoint. Opening for writing keeps this checkpoint and discards the other.
        version: Name or checkpoint number of the version to read, with `read_only`; None: the last checkpoint. See
            `Store.checkpoint`.
        create: Create the store if the folder has none.
        threads: Threads that share a large batch; None: one per core available to the process.
        seed: Seed of the initializers, fixed when the store is created.
        wait_deadline_s: Longest wait, in seconds, for a row beyond its staleness bound, or for an answer of a node.
        history: Bytes on disk for lists of changed ids, beyond those that a checkpoint needs. More bytes let
            `changes` reach back to earlier checkpoints.
        feed: Bytes on disk for a feed of changes ("256MiB"), which `rowmill.ChangeFeed` reads in other processes;
            None: no feed.
        feed_interval_s: Longest time between two rounds of publishing, in seconds.
        feed_waiting: Bytes of memory, beyond `memory`, for changed rows that leave memory and ids that are deleted
            between two rounds of publishing. If they exceed it, publishing stops until the next checkpoint, from which
            followers start again.
        io: "auto" (io_uring where the system allows it) or "pread".
        access: For a storage node: TOML file with the name of this host (`nqn`) and the files of its key (`key_file`) and
            of the node's key (`controller_key_file`). None: the name in `/etc/nvme/hostnqn`, or a new one, without keys.
        alter: New rules and ranges of ids of existing tables, by name; names without a table are skipped. The next
            checkpoint makes them durable. Raises `SpecMismatch` for fewer ids, and for an eviction rule that needs rows
            with a stamp (`TTL`, `LeastFrequent`, `LowestScore`) in a table without one, or the reverse.

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
    if isinstance(path_or_uri, str) and path_or_uri.startswith(node_rows.SCHEME):
        if at is not None or version is not None or feed is not None:
            raise InvalidInput(
                f"{path_or_uri}: a storage node has one state of its rows: leave out at, version and feed"
            )
        given = None if access is None else Path(access)
        rows = node_rows.connect(path_or_uri, access=given, wait_deadline_s=wait_deadline_s)
        return Store(node_rows.as_core(rows), rows.url, 0)
    if access is not None:
        raise InvalidInput(f"access is for URLs {node_rows.SCHEME}..., not for {path_or_uri}")
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
        version=None if version is None else str(version),
        history=parse_size(history, name="history"),
        feed_bytes=None if feed is None else parse_size(feed, name="feed"),
        feed_interval_s=feed_interval_s,
        feed_waiting=parse_size(feed_waiting, name="feed_waiting"),
        io=io,
        alter=[
            (
                name,
                None if rules.num_rows is None else check_int(rules.num_rows, "num_rows", 0, 2**63),
                eviction_to_dict(rules.eviction),
                admission_to_dict(rules.admission),
            )
            for name, rules in (alter or {}).items()
        ],
    )
    return Store(core, str(path_or_uri), memory, chosen=at is not None)


class Store:
    """An open store; `table` creates and opens its tables.

    A store opens at its last complete checkpoint. Changes are durable after the next `checkpoint`. `close` saves nothing;
    the end of a `with` block makes a checkpoint, as `rowmill.open` describes.
    """

    def __init__(
        self, core: _core.Store, location: str, memory: int, *, chosen: bool = False
    ) -> None:
        self.core = core
        self._chosen = chosen
        self._closed = False
        self.location = location
        self.memory = memory
        """The memory budget, in bytes."""
        self.seed: int = core.seed
        """Seed of the initializers, as given when the store was created."""
        self.read_only: bool = core.read_only
        self.steps = StepKeeper(core)
        self.sharding = Sharding()
        """How its tables are spread over ranks."""
        # Weak: no reference cycle, so that an unused store closes at once, without the garbage collector.
        self._tables: WeakValueDictionary[str, Table] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._closed and not self.read_only:
                self._leave(error)
        except StoreForked:
            pass  # The process that opened the store saves it.
        finally:
            self.close()

    def _leave(self, error: BaseException | None) -> None:
        """Make a checkpoint of changed rows at the end of a block, or warn that they are not saved."""
        if error is None:
            self.steps.flush_all()
        unsaved = self.core.stats()["rows_unsaved"]
        if unsaved == 0:
            return
        if error is not None:
            why = f"the block ended with {type(error).__name__}"
        elif self._chosen:
            why = "the store was opened with `at`, so the program that chose it saves it: call prepare() and commit()"
        elif names := self.attachment_names():
            why = (
                f"its last checkpoint has attachments ({', '.join(names)}), which would not fit the changed rows: call "
                "checkpoint(attachments=...) before the block ends"
            )
        else:
            try:
                self.core.checkpoint([])
            except CheckpointInDoubt as doubt:
                why = str(doubt)
            else:
                return
        rows = "1 changed row" if unsaved == 1 else f"{unsaved:,} changed rows"
        try:
            warnings.warn(
                f"{rows} of store {self.location} not saved: {why}", UnsavedRows, stacklevel=3
            )
        except UnsavedRows as warned:
            # The filter makes warnings errors. The error of the block must stay the one that is raised.
            if error is None:
                raise
            error.add_note(str(warned))

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
        """Open the table of that name, or create it.

        Args:
            name: Any name.
            dim: Weights per row.
            optimizer: Optimizer of the rows; its state is stored next to their weights. Its learning rate replaces
                the learning rate of an existing table.
            dtype: How weights are stored. "fp32": 4 bytes. "bf16": 2 bytes, with 8 significant bits; updates round
                stochastically, seeded by the store, so that small steps are not lost. "split-bf16": 4 bytes, as
                upper and lower halves; lookups read only the upper halves (bfloat16), updates and all other calls
                use all bits. Rows are read and updated as float32 in every case.
            initializer: Initial weights of new rows; None: normal with standard deviation 0.01.
            staleness_bound: A training get of a row proceeds while at most this many earlier gets of the row
                wait for their update. 0: synchronous; None: unbounded.
            num_rows: Ids are in [0, num_rows), indexed directly, which is fastest; None: any 64-bit id.
            eviction: Rule by which rows are deleted; None: only `delete` deletes rows.
            admission: Rule by which ids get a row; None: every id that training reads gets one.

        Raises:
            SpecMismatch: The table exists with another dim, dtype, optimizer, initializer or id range.
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
        """Open an existing table with its stored spec; raise `TableMissing` if there is none."""
        core = self.core.open_table(name)
        return self._wrap(core, optimizer_from_dict(core.optimizer))

    def table_names(self) -> list[str]:
        """Names of all tables."""
        return self.core.table_names()

    def lookahead(
        self, ids: Mapping[Table, Ids], *, into: Destination = "buffer", steps: int = 1
    ) -> bool:
        """Prefetch rows of coming batches into memory; returns at once and takes no clocks.

        Rows whose clock another step holds are skipped: their update loads them.

        Args:
            ids: For each table, the ids of coming batches, int64 of any shape. One call for all tables
                is one announcement; the queue of announcements is bounded.
            into: "buffer" keeps rows until the step that needs them is over (at most half of the row
                memory); "cache" lets them compete with other rows.
            steps: How many steps from now the ids will be read, 1 to 63; 1 is the next step to begin.
                Rows not yet prefetched when their step begins are skipped: the step reads them itself.
                Without steps, buffered rows stay until they are first read.

        Returns:
            False if rows were skipped because the queue of announcements is full.
        """
        flat = [as_ids(table_ids)[0] for table_ids in ids.values()]
        return self.core.lookahead(
            [table.core for table in ids], flat, into, check_int(steps, "steps", 1, 2**63 - 1)
        )

    def _wrap(self, core: _core.Table, optimizer: OptimizerSpec) -> Table:
        # One object per table, so that its learning rate and its gradients of a step exist once.
        table = self._tables.get(core.name)
        if table is None:
            self._tables[core.name] = table = Table(self, core, optimizer)
        return table

    # Steps.

    @property
    def event_time(self) -> int | None:
        """The latest event time passed to a step, in seconds; None before the first."""
        return self.core.event_time

    def step(self, *, event_time: int | None = None) -> ExplicitStep:
        """A training step delimited by a block: `with store.step(): forward; backward`.

        Gradients of all backward passes in the block are summed and applied once when the block ends; an
        exception drops them. Either way every clock is released. Outside such a block, each backward pass is
        a step.

        Args:
            event_time: When the step's training data happened, in whole seconds since an origin that all runs share.
                Tables with `TTL(seconds=...)` use it. None: the latest event time so far.

        Raises:
            StepConflict: On entering the block, if this thread already runs a step.
        """
        return ExplicitStep(self.steps, _event_time(event_time))

    def forward(self, *, event_time: int | None = None) -> ForwardStep:
        """A training step whose backward runs after the block, on any thread: `with store.forward(): forward`.

        The lookups of the block form one step, which ends when their backward is over. So one thread may look
        up rows of several steps before the first step updates its rows. The staleness bound of each table
        limits the lag. At bound 0 the lookup of a row waits for the backward of an earlier step that holds the
        row: run that backward on another thread, or the wait ends with `StalenessTimeout`.

        Args:
            event_time: As for `step`.
        """
        return ForwardStep(self.steps, _event_time(event_time))

    def ticket(self, *, event_time: int | None = None) -> Ticket:
        """A ticket for `get_or_init`, `put` and `rmw` of tables, which holds clocks; modules need none."""
        return Ticket(self.core.ticket(_event_time(event_time)))

    # The whole store.

    def checkpoint(
        self,
        *,
        attachments: Mapping[str, bytes] | None = None,
        version: NewVersion | None = None,
    ) -> dict[str, Any]:
        """Make all rows durable atomically, with named attachments of the caller.

        Args:
            attachments: Bytes by name. They replace all attachments of earlier checkpoints.
            version: Keep this checkpoint as a version: it can be read (`rowmill.open(..., version=)`) and rolled back to
                (`rowmill.rollback`) until it ages out. It shares unchanged rows with later checkpoints.

        Returns:
            `epoch` (the checkpoint's number), `rows_saved`, `log_bytes`, `file_bytes`, `stall_s` (seconds for
            which changes were blocked) and `duration_s`.
        """
        self.steps.flush_all()
        return self.core.checkpoint(
            list((attachments or {}).items()), None if version is None else version.as_dict()
        )

    def prepare(
        self,
        *,
        attachments: Mapping[str, bytes] | None = None,
        version: NewVersion | None = None,
    ) -> dict[str, Any]:
        """As `checkpoint`, but the previous checkpoint stays the last one until `commit`; both are durable.

        This is the first phase of a two-phase commit over several stores: all stores prepare, the caller writes a
        file with their epochs, and all stores commit. After a crash in between, `rowmill.open(..., at=number)` chooses
        the checkpoint. `rowmill.distributed.Checkpoint` does this for the stores of many ranks.
        """
        self.steps.flush_all()
        return self.core.prepare(
            list((attachments or {}).items()), None if version is None else version.as_dict()
        )

    def commit(self) -> dict[str, Any]:
        """Make the prepared checkpoint the last one."""
        return self.core.commit()

    def versions(self) -> list[dict[str, Any]]:
        """The versions that the last checkpoint keeps, oldest first, as `rowmill.versions` returns them."""
        return self.core.versions()

    def push(self, url: str, *, keep: int = 3) -> dict[str, Any]:
        """Upload the last checkpoint to an object store.

        Parts that an earlier checkpoint at the URL already has are not uploaded again. The push is atomic: if it
        raises, the checkpoint is not listed. Other threads may train and make checkpoints meanwhile.

        Args:
            url: `s3://bucket/path`, `gs://bucket/path`, `az://container/path` or `file:///path`, for this store
                alone; `rowmill.store.remote` lists the environment variables for credentials.
            keep: Number of checkpoints to keep at the URL; older ones are removed.

        Returns:
            `epoch` (the checkpoint's number), `parts_uploaded`, `bytes_uploaded`, `bytes` (of the checkpoint)
            and `objects_removed`.

        Raises:
            RemoteError: A request failed, retries included.
            RemoteConflict: Another writer pushes or pushed to the URL.
        """
        return self.core.push(url, check_int(keep, "keep", 1, KEEP_MAX))

    def changes(self, since: int) -> Changes:
        """The changes from checkpoint `since` to the last one; 0: all rows. See `rowmill.Changes`."""
        return Changes(self.core.changes(check_int(since, "since", 0, 2**63 - 1)))

    def publish(self) -> int:
        """Publish all changes now, in a store opened with a `feed`; returns the feed's last sequence number."""
        self.steps.flush()
        return self.core.publish()

    def attachment_names(self) -> list[str]:
        """Names of the last checkpoint's attachments."""
        return self.core.attachment_names()

    def attachment(self, name: str) -> bytes | None:
        """Bytes attached to the last checkpoint, or None."""
        return self.core.attachment(name)

    def stats(self) -> dict[str, Any]:
        """Metrics of the store; counters start at its opening.

        Memory, in bytes: `memory_budget`, `index_bytes`, `row_bytes`, `row_limit`, `overhead_bytes`,
        `buffer_bytes`. Device: `device_live_bytes`, `device_used_bytes`, `device_pinned_bytes`,
        `device_free_bytes`, `device_bytes_written`, `device_blocks_read`, `corrupt_blocks`. Rows:
        `rows_resident`, `rows_dirty`, `rows_unsaved`, `evictions`, `deletes`. Feed: `feed_rows` (rows and
        deletes published), `feed_sequence`, `feed_failure` (why publishing stopped until the next
        checkpoint, or None), `feed_waiting_bytes`. Reads: `calls`, `lookups` (ids),
        `rows_looked_up` (distinct per call), `lookups_apart` (ids pooled in evaluation on a slower path,
        mostly because rows needed with them were on the device), `cold_reads`, `cold_wait_ns`, `hit_rate`.
        Updates: `updates` (calls), `rows_updated`. Clocks: `clock_waits`, `clock_wait_ns`, `tickets` (open
        steps), `staleness` (clocks taken, by number of gets outstanding before). Lookahead:
        `lookahead_rows`, `lookahead_loaded`, `lookahead_late`, `lookahead_dropped`, `lookahead_errors`.
        Also `compactions`, `rows_compacted`, `checkpoints`, `io`.

        `tables` has per name: `group`, `rows`, `row_bytes`, and since the table's creation, restarts
        included: `accesses`, `births` (rows created), `deletes`, `evicted` (rows deleted by its eviction rule),
        `steps`. The store's `evictions` counts rows that left memory only.

        `groups` has per number: `row_places_used` (rows on the device, old versions included until
        compaction), `row_places` (the limit) and `row_places_share` (used / limit). Creating rows raises
        `RowPlacesExhausted` before the share reaches 1: some places are reserved for checkpoints.
        """
        return self.core.stats()

    def metrics(self) -> str:
        """The metrics of `stats` in the Prometheus text format."""
        return self.core.metrics()

    def close(self) -> None:
        """Release the folder and the memory. Changes since the last `checkpoint` are lost."""
        self._closed = True
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
            f"cannot open {path_or_uri!r}: a store is a folder; give its path or a file:// URI"
        )
    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(f"{path_or_uri!r} names host {parts.netloc!r}: write file:///path")
    return Path(unquote(parts.path))
