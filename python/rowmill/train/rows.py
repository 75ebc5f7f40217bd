"""The half of a model that lies in tables: in a store, or in plain torch modules to compare with.

Both give the model its `embeddings`, take part in every step, and count what they did, so that the training loop
does not ask which one it has. `plain_rows` begins with the initial values that the store would have drawn.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import rowmill
from rowmill.config import ConfigError
from rowmill.eviction import TTL, LeastFrequent, LowestNorm, MinCount
from rowmill.models import FeatureBags
from rowmill.nn import Feature, StackedBags
from rowmill.optim import SGD, Adagrad, Adam, optimizer_from_dict, optimizer_to_dict
from rowmill.train.folder import check_is_of_a_run
from rowmill.train.state import ATTACHMENT, check_same_run

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config import AdmissionConfig, Config, EvictionConfig, RowsConfig
    from rowmill.data import IdWay, Schema, Source
    from rowmill.eviction import Admission, Eviction
    from rowmill.optim import OptimizerSpec
    from rowmill.store import Store
    from rowmill.tables import Table


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


@dataclass(frozen=True)
class Columns:
    """Which table each column of a batch's ids is of, and per table the id that stands for nothing, if one does.

    Without histories every column has its table, and every id a row.
    """

    tables: tuple[int, ...]
    paddings: tuple[int | None, ...]

    @classmethod
    def of(cls, schema: Schema, way: IdWay) -> Columns:
        """Those of a log: of a feature with a history, a missing value has no row."""
        paddings = [way.missing if f in schema.targets else None for f in range(len(schema.ids))]
        return cls(tuple(schema.id_features), tuple(paddings))

    def of_table(self, table: int) -> list[int]:
        """The columns of one table."""
        return [column for column, used in enumerate(self.tables) if used == table]


class RowSide(Protocol):
    """What the training loop needs of the tables."""

    @property
    def embeddings(self) -> nn.Module:
        """Called as `embeddings(ids, offsets)`, gives `[B, S, D]`."""
        ...

    def inputs(self, ids_BS: Tensor) -> Tensor:
        """What the embeddings take for the ids of a batch."""
        ...

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """A batch with these ids comes in so many steps: 1 is the next."""
        ...

    def step(self) -> None:
        """A backward pass is over."""
        ...

    def counters(self) -> RowCounters:
        """Figures since the start."""
        ...

    def save(self, attachments: Mapping[str, bytes]) -> None:
        """Make rows and attachments durable together."""
        ...

    def attachment(self, name: str) -> bytes | None:
        """What the last `save` attached."""
        ...

    def summary(self) -> dict[str, Any]:
        """Figures for the report: how things stand now."""
        ...

    def counts(self) -> dict[str, int]:
        """Figures for the report that only grow, since the start."""
        ...


class StoredRows:
    """Rows in a store, updated by backward itself."""

    def __init__(
        self, store: Store, tables: list[Table], columns: Columns, console: Console
    ) -> None:
        self.store = store
        self.tables = tables
        self._columns = columns
        self._console = console
        self._feed_failure = ""
        self.embeddings: nn.Module = StackedBags(
            Feature(f"{column} {tables[table].name}", tables[table], "sum", columns.paddings[table])
            for column, table in enumerate(columns.tables)
        )

    def inputs(self, ids_BS: Tensor) -> Tensor:
        """The ids themselves."""
        return ids_BS

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Ask the store to have the rows in memory by the time they are needed."""
        ids_SB = ids_BS.t().contiguous()
        wanted: dict[Table, Tensor] = {}
        for number, table in enumerate(self.tables):
            padding = self._columns.paddings[number]
            if padding is None:
                wanted[table] = ids_SB[number]
            else:
                ids = ids_SB[self._columns.of_table(number)].view(-1)
                wanted[table] = ids[ids != padding]
        self.store.lookahead(wanted, steps=steps)

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

    def save(self, attachments: Mapping[str, bytes]) -> None:
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
        self.store.checkpoint(attachments=attachments)

    def attachment(self, name: str) -> bytes | None:
        """What the last checkpoint holds beside the rows."""
        return self.store.attachment(name)

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
def stored_rows(
    config: Config,
    source: Source,
    *,
    way: IdWay,
    path: Path,
    threads: int,
    identity: dict[str, Any],
    optimizer: OptimizerSpec,
    console: Console,
) -> Generator[StoredRows]:
    """Open the store at `path` with one table per id feature; to go on, it must be of the run of that identity."""
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
            check_same_run(store.attachment(ATTACHMENT), identity)
        tables = _tables(store, config, source, way, optimizer)
        yield StoredRows(store, tables, Columns.of(source.schema, way), console)


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


def _tables(
    store: Store, config: Config, source: Source, way: IdWay, optimizer: OptimizerSpec
) -> list[Table]:
    names = source.schema.ids
    sizes = way.rows(len(names)) or [None] * len(names)
    width = config.rows.initial_width
    return [
        store.table(
            name,
            dim=config.model.dim,
            optimizer=optimizer,
            dtype=config.rows.dtype,
            initializer=rowmill.init.Uniform(-width, width),
            staleness_bound=config.store.staleness_bound,
            num_rows=size,
            eviction=row_eviction(config.eviction),
            admission=row_admission(config.admission),
        )
        for name, size in zip(names, sizes, strict=True)
    ]


class PlainRows:
    """Rows in `torch.nn.EmbeddingBag` modules, updated by a torch optimizer.

    Every distinct id of the log gets a place when the run begins, so this takes memory for all of them.
    """

    def __init__(
        self,
        distinct: list[NDArray[np.int64]],
        weights: list[Tensor],
        columns: Columns,
        optimizer: OptimizerSpec,
    ) -> None:
        self._distinct = distinct
        self._columns = columns
        self._looked_up = 0
        bags = [
            nn.EmbeddingBag(
                weight.shape[0],
                weight.shape[1],
                mode="sum",
                sparse=True,
                _weight=weight,
                padding_idx=None if padding is None else int(np.searchsorted(known, padding)),
            )
            for weight, known, padding in zip(weights, distinct, columns.paddings, strict=True)
        ]
        self.embeddings: nn.Module = FeatureBags(bags, bag_of=columns.tables)
        self._parameters = list(self.embeddings.parameters())
        self._optimizer = _torch_optimizer(self._parameters, optimizer)

    def inputs(self, ids_BS: Tensor) -> Tensor:
        """The place of every id among the distinct ids of its feature."""
        ids = ids_BS.numpy()
        self._looked_up += ids.size
        places = [
            np.searchsorted(self._distinct[table], ids[:, column])
            for column, table in enumerate(self._columns.tables)
        ]
        return torch.from_numpy(np.stack(places, axis=1))

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Everything is in memory."""

    def step(self) -> None:
        """Update the rows."""
        # torch asks for a decision: its own sparse gradients need no check.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self._optimizer.step()
        self._optimizer.zero_grad()

    def counters(self) -> RowCounters:
        """Nothing is ever cold."""
        return RowCounters(self._looked_up, 0, 0.0, self._bytes())

    def save(self, attachments: Mapping[str, bytes]) -> None:
        """Plain rows are not kept."""

    def attachment(self, name: str) -> bytes | None:
        """Nothing is kept."""
        return None

    def summary(self) -> dict[str, Any]:
        """Live rows and bytes."""
        rows = sum(len(known) for known in self._distinct)
        return {"live_rows": rows, "live_row_bytes": self._bytes()}

    def counts(self) -> dict[str, int]:
        """Nothing is counted."""
        return {}

    def _bytes(self) -> int:
        state = sum(
            value.nbytes
            for entry in self._optimizer.state.values()
            for value in entry.values()
            if isinstance(value, Tensor)
        )
        return sum(weight.nbytes for weight in self._parameters) + state


@contextmanager
def plain_rows(
    config: Config, source: Source, *, way: IdWay, threads: int, optimizer: OptimizerSpec
) -> Generator[PlainRows]:
    """All distinct ids of the log in torch modules, with the initial values a store would draw."""
    columns = Columns.of(source.schema, way)
    distinct = _distinct_ids(source, way, columns)
    with (
        tempfile.TemporaryDirectory() as folder,
        rowmill.open(
            folder, memory=config.store.memory, threads=threads, seed=config.train.seed
        ) as store,
    ):
        tables = _tables(store, config, source, way, optimizer)
        weights = [
            table.get(torch.from_numpy(ids)) for table, ids in zip(tables, distinct, strict=True)
        ]
    yield PlainRows(distinct, weights, columns, optimizer)


def _torch_optimizer(
    parameters: list[nn.Parameter], optimizer: OptimizerSpec
) -> torch.optim.Optimizer:
    match optimizer:
        case SGD(lr=lr):
            return torch.optim.SGD(parameters, lr=lr)
        case Adagrad(lr=lr, eps=eps, initial_accumulator=initial):
            return torch.optim.Adagrad(
                parameters, lr=lr, eps=eps, initial_accumulator_value=initial
            )
        case Adam(lr=lr, beta1=beta1, beta2=beta2, eps=eps):
            return torch.optim.SparseAdam(parameters, lr=lr, betas=(beta1, beta2), eps=eps)
        case _:
            kind = optimizer_to_dict(optimizer)["kind"]
            raise ConfigError(
                f"rows.optimizer = {kind!r} has no counterpart in torch that lets absent rows stand still: "
                "drop --plain"
            )


def _distinct_ids(source: Source, way: IdWay, columns: Columns) -> list[NDArray[np.int64]]:
    nothing = ([] if padding is None else [padding] for padding in columns.paddings)
    distinct = [np.array(ids, np.int64) for ids in nothing]
    for block in source.blocks(0, source.rows):
        ids = way.apply(block.ids)
        distinct = [
            np.union1d(known, ids[:, columns.of_table(table)])
            for table, known in enumerate(distinct)
        ]
    return distinct
