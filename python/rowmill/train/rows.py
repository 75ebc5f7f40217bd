"""The half of a model that lies in tables of a store, and how the settings of a run say what its rows are.

A task gives its rows to the training loop as a `RowSide`: it takes part in every step, counts what it did, and is saved
with everything else.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import rowmill
from rowmill.config.setting import ConfigError
from rowmill.optim.specs import optimizer_from_dict
from rowmill.store.eviction import TTL, LeastFrequent, LowestNorm, MinCount
from rowmill.train.folder import check_is_of_a_run, make_out, store_folder
from rowmill.train.in_flight import StepsInFlight
from rowmill.train.state import ATTACHMENT, check_same_run, described_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.config.sections import AdmissionConfig, EvictionConfig, RowsConfig
    from rowmill.init import Initializer
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.eviction import Admission, Eviction
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.train.state import Run


@dataclass(frozen=True)
class RowCounters:
    """Figures since the start.

    Distinct rows asked for by steps, those read from the device while a step waited, the seconds it
    waited for them, and bytes of rows in memory now.
    """

    looked_up: int
    cold: int
    stalled_s: float
    resident_bytes: int


class StepPipeline(Protocol):
    """Brings batches to the training loop."""

    waited_s: float
    """Seconds in which the loop waited for a batch that was not ready."""

    def run(self, batches: Iterable[Any]) -> Generator[tuple[Any, Any]]:
        """Batches with what was looked up for them; all steps are over when it is exhausted."""
        ...


class RowSide(Protocol):
    """What the training loop needs of the tables."""

    def step(self) -> None:
        """A backward pass is over."""
        ...

    def counters(self) -> RowCounters:
        """Figures since the start."""
        ...

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """What brings batches to the loop with what was looked up for them; None: the loop looks them up itself."""
        ...

    def save(self, run: Run) -> None:
        """Make rows and all else durable together."""
        ...

    def restore(self, run: Run) -> list[str] | None:
        """Put back what the last `save` had beside the rows; what `Run.unpack` returns, None if nothing was saved."""
        ...

    def summary(self) -> dict[str, Any]:
        """Figures for the report: how things stand now."""
        ...

    def counts(self) -> dict[str, int]:
        """Figures for the report that only grow, since the start."""
        ...


class StoredRows:
    """Rows in a store, updated by backward itself."""

    def __init__(self, store: Store, tables: Sequence[Table], console: Console) -> None:
        self.store = store
        self.tables = list(tables)
        self._console = console
        self._feed_failure = ""

    def step(self) -> None:
        """Backward has updated the rows."""

    def counters(self) -> RowCounters:
        """Figures since the store was opened."""
        stats = self.store.stats()
        return RowCounters(
            looked_up=stats["rows_looked_up"],
            cold=stats["cold_reads"],
            stalled_s=stats["cold_wait_ns"] / 1e9,
            resident_bytes=stats["row_bytes"],
        )

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """Lookups of more than one step at a time."""
        return StepsInFlight(self.store, look_up, in_flight) if in_flight > 1 else None

    def save(self, run: Run) -> None:
        """One atomic checkpoint; the feed goes on there if it had to pause."""
        failure = self.store.stats()["feed_failure"]
        if failure and failure != self._feed_failure:
            self._console.print(
                f"Note: nothing was published up to this checkpoint, from which followers start again: {failure}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        self._feed_failure = failure
        self.store.checkpoint(attachments={ATTACHMENT: run.pack()})

    def restore(self, run: Run) -> list[str] | None:
        """What the last checkpoint holds beside the rows."""
        packed = self.store.attachment(ATTACHMENT)
        return None if packed is None else run.unpack(packed)

    def summary(self) -> dict[str, Any]:
        """Live rows and bytes, and memory."""
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
        """Lookups, rows that came and went, and traffic of the device, since the store was opened."""
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


@contextmanager
def open_rows(config: Config, *, threads: int, identity: dict[str, Any]) -> Generator[Store]:
    """Open the store of a run; to go on, it must be of the run of that identity."""
    make_out(config)
    path = store_folder(config)
    store = rowmill.open(
        path,
        memory=config.store.memory,
        row_memory=config.store.row_memory,
        threads=threads,
        seed=config.train.seed,
        feed=config.store.feed,
        feed_interval_s=config.store.feed_interval_s,
        feed_waiting=config.store.feed_waiting,
    )
    with store:
        if config.train.resume:
            check_is_of_a_run(store, path)
            packed = store.attachment(ATTACHMENT)
            if packed is not None:
                check_same_run(described_in(packed)["identity"], identity)
        yield store


def new_table(
    store: Store,
    config: Config,
    name: str,
    *,
    dim: int,
    num_rows: int | None,
    initializer: Initializer | None = None,
) -> Table:
    """A table whose rows are what the settings say; without an initializer they say that too."""
    width = config.rows.initial_width
    return store.table(
        name,
        dim=dim,
        optimizer=row_optimizer(config.rows),
        dtype=config.rows.dtype,
        initializer=initializer or rowmill.init.Uniform(-width, width),
        staleness_bound=config.store.staleness_bound,
        num_rows=num_rows,
        eviction=row_eviction(config.eviction),
        admission=row_admission(config.admission),
    )


def row_optimizer(rows: RowsConfig) -> OptimizerSpec:
    """The optimizer of a run, with the parameters that are set; raises if it does not take one of them."""
    optimizer = optimizer_from_dict({"kind": rows.optimizer, "lr": rows.lr})
    given = {key: value for key, value in vars(rows).items() if value is not None}
    del given["optimizer"], given["dtype"], given["initial_width"]
    takes = vars(optimizer)
    for key, value in given.items():
        if key not in takes:
            raise ConfigError(
                f"rows.{key} = {value!r}, but {rows.optimizer} takes {', '.join(takes)}: "
                f"drop rows.{key}, or set rows.optimizer to one that takes it"
            )
    return replace(optimizer, **given)


_EVICTIONS = {"ttl": TTL, "least_frequent": LeastFrequent, "lowest_norm": LowestNorm}


def row_eviction(eviction: EvictionConfig) -> Eviction | None:
    """The eviction of a run; raises if its rule does not take what is set, or lacks what it needs."""
    names = ("steps", "max_rows", "below")
    given = {name: value for name in names if (value := getattr(eviction, name)) is not None}
    if eviction.rule == "none":
        if given:
            raise ConfigError(
                f"eviction.{next(iter(given))} is set, but eviction.rule is none: name a rule"
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
    """The admission of a run."""
    return None if admission.min_count is None else MinCount(admission.min_count, admission.bytes)
