"""The rows of a run: tables of a store, made from the settings.

A task gives its rows to the training loop as a `RowSide`, which takes part in every step, counts lookups, and saves and
restores the rows together with the rest of the run.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import rowmill
from rowmill.config.sections import OptimizerParameters
from rowmill.config.setting import ConfigError
from rowmill.optim.specs import optimizer_from_dict
from rowmill.store.eviction import TTL, LeastFrequent, LowestNorm, MinCount, TableRules
from rowmill.store.row_files import load_rows
from rowmill.train.folder import check_is_of_a_run, make_out, store_folder
from rowmill.train.in_flight import StepsInFlight
from rowmill.train.pusher import StorePusher
from rowmill.train.run_files import FILES_ATTACHMENT, files_of, read_run_file
from rowmill.train.state import ATTACHMENT, check_goes_on, described_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.config.sections import AdmissionConfig, EvictionConfig, RowsConfig
    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.eviction import Admission, Eviction
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.store.versions import NewVersion
    from rowmill.train.pusher import Pusher
    from rowmill.train.state import Run


@dataclass(frozen=True)
class RowCounters:
    """Counters since the start.

    Attributes:
        looked_up: Distinct rows that steps looked up.
        cold: Rows that were read from the device while a step waited.
        stalled_s: Seconds that steps waited for these reads.
        resident_bytes: Bytes of rows in memory now.
    """

    looked_up: int
    cold: int
    stalled_s: float
    resident_bytes: int


class StepPipeline(Protocol):
    """Yields batches with their looked-up rows to the training loop."""

    waited_s: float
    """Seconds that the loop waited for a batch."""

    @property
    def ends(self) -> bool:
        """Whether `end` was called."""
        ...

    def end(self) -> None:
        """Begin no further step: `run` yields those that may have begun, on many ranks equally many on each."""
        ...

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Any]]:
        """Yield pairs of a batch and its looked-up rows; all steps are finished when the generator is exhausted."""
        ...


class RowSide(Protocol):
    """The interface of the rows to the training loop."""

    def step(self) -> None:
        """Called after each backward pass."""
        ...

    def counters(self) -> RowCounters:
        """Counters since the start."""
        ...

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """A pipeline of lookups with up to `in_flight` steps; None: the loop looks up the rows of each step itself."""
        ...

    def save(self, run: Run, version: NewVersion | None = None) -> None:
        """Write one checkpoint of the rows and the rest of the run, and keep it as a version if one is given."""
        ...

    def restore(self, run: Run) -> list[str] | None:
        """Restore `run` from the last `save`; returns the result of `Run.unpack`, or None if nothing was saved."""
        ...

    def summary(self) -> dict[str, Any]:
        """Gauges for the report: current values."""
        ...

    def counts(self) -> dict[str, int]:
        """Counters for the report, since the start."""
        ...


class StoredRows:
    """Rows in a store; the backward pass updates them."""

    def __init__(self, store: Store, tables: Sequence[Table], console: Console) -> None:
        self.store = store
        self.tables = list(tables)
        self._console = console
        self._feed_failure = ""

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run was saved before."""
        return self.store.attachment(ATTACHMENT) is not None

    def load(
        self, table: Table, file: str, *, vectors: str | None = None, ids: str | None = None
    ) -> int:
        """Write the vectors of a file to rows of a table, as `rowmill.load_rows`; returns their number."""
        return load_rows(table, file, vectors=vectors, ids=ids)

    def step(self) -> None:
        """Does nothing: the backward pass has updated the rows."""

    def counters(self) -> RowCounters:
        """Counters since the store was opened."""
        stats = self.store.stats()
        return RowCounters(
            looked_up=stats["rows_looked_up"],
            cold=stats["cold_reads"],
            stalled_s=stats["cold_wait_ns"] / 1e9,
            resident_bytes=stats["row_bytes"],
        )

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """`StepsInFlight` for more than one step in flight, else None."""
        return StepsInFlight(self.store, look_up, in_flight) if in_flight > 1 else None

    def save(self, run: Run, version: NewVersion | None = None) -> None:
        """Write one atomic checkpoint. If the feed had failed, it resumes from this checkpoint."""
        self._warn_of_feed(self.store.stats()["feed_failure"])
        run.files.write(Path(self.store.location))
        listed = {FILES_ATTACHMENT: run.files.listed()} if run.files.names else {}
        self.store.checkpoint(attachments={ATTACHMENT: run.pack(), **listed}, version=version)

    def pusher(self, url: str, *, keep: int) -> Pusher:
        """Pushes the checkpoints to a URL, where `keep` stay."""
        return StorePusher(self.store, url, keep=keep, console=self._console)

    def _warn_of_feed(self, failure: str | None) -> None:
        """Print why the feed failed before this checkpoint, if it did, once per failure."""
        if failure and failure != self._feed_failure:
            self._console.print(
                f"Warning: the feed failed before this checkpoint; followers restart from the checkpoint: {failure}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        self._feed_failure = failure or ""

    def restore(self, run: Run) -> list[str] | None:
        """Restore `run` from the attachment of the last checkpoint."""
        packed = self.store.attachment(ATTACHMENT)
        return None if packed is None else run.unpack(packed)

    def summary(self) -> dict[str, Any]:
        """Number and bytes of live rows, and memory."""
        stats = self.store.stats()
        tables = [stats["tables"][table.name] for table in self.tables]
        return {
            "live_rows": sum(table["rows"] for table in tables),
            "live_row_bytes": sum(table["rows"] * table["row_bytes"] for table in tables),
            **{
                name: stats[name]
                for name in (
                    "memory_budget",
                    "row_limit",
                    "row_bytes",
                    "index_bytes",
                    "overhead_bytes",
                    "buffer_bytes",
                    "rows_resident",
                    "io",
                )
            },
        }

    def counts(self) -> dict[str, int]:
        """Lookups, prefetches, spills and device traffic since the store was opened."""
        stats = self.store.stats()
        return {
            name: stats[name]
            for name in (
                "evictions",
                "lookups",
                "rows_looked_up",
                "cold_reads",
                "lookahead_loaded",
                "lookahead_late",
                "lookahead_dropped",
                "device_blocks_read",
                "device_bytes_written",
            )
        }


def feed_options(config: Config) -> dict[str, Any]:
    """The options of `rowmill.open` for the feed of a store."""
    given = config.store
    return {
        "feed": given.feed,
        "feed_interval_s": given.feed_interval_s,
        "feed_waiting": given.feed_waiting,
    }


@contextmanager
def open_rows(
    config: Config,
    *,
    threads: int,
    identity: dict[str, Any],
    sizes: Mapping[str, int | None] | None = None,
) -> Generator[Store]:
    """Open the store of a run. To resume, the store must belong to a run with this identity.

    With `train.continues`, its tables get the rules of the settings, and these `sizes` by name.
    """
    make_out(config)
    path = store_folder(config)
    store = rowmill.open(
        path,
        memory=config.store.memory,
        row_memory=config.store.row_memory,
        threads=threads,
        seed=config.train.seed,
        **feed_options(config),
        alter=table_rules(config, sizes or {}),
    )
    # The run makes its checkpoints itself: at the end of a block, rows would run ahead of the dense half.
    with closing(store):
        if config.train.resume:
            check_is_of_a_run(store, path)
            packed = store.attachment(ATTACHMENT)
            if packed is not None:
                described = described_in(packed)
                for name in files_of(described).values():
                    read_run_file(path, name)
                check_goes_on(
                    described,
                    identity,
                    data=str(config.data.path),
                    continues=config.train.continues,
                )
        yield store


def table_rules(config: Config, sizes: Mapping[str, int | None]) -> dict[str, TableRules] | None:
    """What changes of the tables with these numbers of ids, by name, if a run is continued."""
    if not config.train.continues:
        return None
    eviction, admission = row_eviction(config.eviction), row_admission(config.admission)
    return {
        name: TableRules(num_rows=size, eviction=eviction, admission=admission)
        for name, size in sizes.items()
    }


def new_table(
    store: Store,
    config: Config,
    name: str,
    *,
    dim: int,
    num_rows: int | None,
    initializer: Initializer | None = None,
) -> Table:
    """A table with the row settings of the run; without `initializer`, weights are uniform by `rows.initial_width`."""
    width = config.rows.initial_width
    return store.table(
        name,
        dim=dim,
        optimizer=row_optimizer(config.rows, name),
        dtype=config.rows.dtype,
        initializer=initializer or rowmill.init.Uniform(-width, width),
        staleness_bound=config.store.staleness_bound,
        num_rows=num_rows,
        eviction=row_eviction(config.eviction),
        admission=row_admission(config.admission),
    )


def row_optimizer(rows: RowsConfig, table: str | None = None) -> OptimizerSpec:
    """The row optimizer of the settings, for a table if one is named; raises `ConfigError` for a parameter that it does not take."""
    own = (rows.tables or {}).get(table or "")
    kind = rows.optimizer if own is None or own.optimizer is None else own.optimizer
    given = {
        f"rows.{key}": value
        for key, value in parameters_of(rows).items()
        # Parameters of another optimizer.
        if kind == rows.optimizer
    }
    lr = rows.lr
    if own is not None:
        lr = lr if own.lr is None else own.lr
        for key, value in parameters_of(own).items():
            given.pop(f"rows.{key}", None)
            given[f"rows.tables.{table}.{key}"] = value
    optimizer = optimizer_from_dict({"kind": kind, "lr": lr})
    takes = vars(optimizer)
    for name, value in given.items():
        if name.rpartition(".")[2] not in takes:
            raise ConfigError(
                f"{name} = {value!r}, but {kind} takes {', '.join(takes)}: "
                f"drop {name}, or set {name.rpartition('.')[0]}.optimizer to one that takes it"
            )
    return replace(optimizer, **{name.rpartition(".")[2]: value for name, value in given.items()})


def parameters_of(rows: OptimizerParameters) -> dict[str, Any]:
    """The parameters of a row optimizer that are given, besides its learning rate."""
    names = (entry.name for entry in fields(OptimizerParameters))
    return {name: value for name in names if (value := getattr(rows, name)) is not None}


def check_tables(config: Config, tables: Iterable[str]) -> None:
    """Raise `ConfigError` if settings name a table that the run does not have."""
    known = list(tables)
    for section, named in (("rows", config.rows.tables), ("warm_start", config.warm_start.tables)):
        for name in named or {}:
            if name not in known:
                raise ConfigError(
                    f"{section}.tables.{name} names a table that this run does not have; its tables: {', '.join(known)}"
                )


_EVICTIONS = {"ttl": TTL, "least_frequent": LeastFrequent, "lowest_norm": LowestNorm}


def row_eviction(eviction: EvictionConfig) -> Eviction | None:
    """The eviction rule of the settings; raises `ConfigError` for a parameter that it does not take or lacks."""
    names = ("steps", "max_rows", "below")
    given = {name: value for name in names if (value := getattr(eviction, name)) is not None}
    if eviction.rule == "none":
        if given:
            raise ConfigError(
                f"eviction.{next(iter(given))} is set, but eviction.rule is none: set eviction.rule, or remove it"
            )
        return None
    takes = {"ttl": {"steps"}, "least_frequent": {"max_rows"}, "lowest_norm": {"max_rows", "below"}}
    wanted = takes[eviction.rule]
    if len(given) != 1 or not given.keys() <= wanted:
        raise ConfigError(
            f"eviction.rule = {eviction.rule!r} takes eviction.{' or eviction.'.join(sorted(wanted))}, got "
            f"{', '.join(f'eviction.{name}' for name in given) or 'none of these'}"
        )
    return _EVICTIONS[eviction.rule](**given, every=eviction.every)


def row_admission(admission: AdmissionConfig) -> Admission | None:
    """The admission rule of the settings."""
    return None if admission.min_count is None else MinCount(admission.min_count, admission.bytes)
