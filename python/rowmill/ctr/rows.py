"""The tables of a click model: in a store, or in plain torch modules to compare with.

Both give the model its `embeddings` and take part in every step, so that the task does not ask which one it has.
`plain_rows` begins with the initial values that the store would have drawn.
"""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import rowmill
from rowmill.config.setting import ConfigError
from rowmill.ctr.models import FeatureBags
from rowmill.nn import Feature, StackedBags
from rowmill.optim.specs import SGD, Adagrad, Adam, optimizer_to_dict
from rowmill.train.folder import make_out
from rowmill.train.rows import RowCounters, RowSide, StoredRows, new_table, open_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.ctr.data import IdWay, Schema, Source
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.train.rows import StepPipeline
    from rowmill.train.state import Run


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


def stored_features(tables: Sequence[Table], columns: Columns) -> list[Feature]:
    """What is looked up for each column of ids."""
    return [
        Feature(f"{column} {tables[table].name}", tables[table], "sum", columns.paddings[table])
        for column, table in enumerate(columns.tables)
    ]


def pooled_dtype(config: Config) -> torch.dtype:
    """Of pooled vectors: rows of 16 bits that are bags of their own stay what they are for a DLRM that multiplies in bfloat16.

    Other models add up what they take, which is done in float32.
    """
    narrow = "fp32" not in (config.rows.dtype, config.train.precision)
    return torch.bfloat16 if narrow and config.model.kind == "dlrm" else torch.float32


class ClickRows(RowSide, Protocol):
    """Rows that pool the ids of a batch."""

    @property
    def embeddings(self) -> nn.Module:
        """Called as `embeddings(ids, offsets)`, gives `[B, S, D]`."""
        ...

    def inputs(self, ids_BS: Tensor) -> Any:
        """What the embeddings take for the ids of a batch."""
        ...

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """A batch with these ids comes in so many steps: 1 is the next."""
        ...

    def reading(self) -> AbstractContextManager[object]:
        """A step that reads what was announced for it, and trains nothing."""
        ...


class StoredClickRows(StoredRows):
    """Rows in a store, updated by backward itself."""

    def __init__(
        self,
        store: Store,
        tables: list[Table],
        columns: Columns,
        console: Console,
        output_dtype: torch.dtype,
    ) -> None:
        super().__init__(store, tables, console)
        self._columns = columns
        features = stored_features(tables, columns)
        self.embeddings: nn.Module = StackedBags(features, output_dtype=output_dtype)

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

    def reading(self) -> AbstractContextManager[object]:
        """Announced rows wait for a step, and an evaluation is none by itself."""
        return self.store.forward()


@contextmanager
def stored_rows(
    config: Config,
    source: Source,
    *,
    way: IdWay,
    threads: int,
    identity: dict[str, Any],
    console: Console,
) -> Generator[StoredClickRows]:
    """The store of a run, with one table per id feature."""
    with open_rows(config, threads=threads, identity=identity) as store:
        tables = new_tables(store, config, source, way)
        columns = Columns.of(source.schema, way)
        yield StoredClickRows(store, tables, columns, console, pooled_dtype(config))


def new_tables(store: Store, config: Config, source: Source, way: IdWay) -> list[Table]:
    """One table per id feature."""
    names = source.schema.ids
    sizes = way.rows(len(names)) or [None] * len(names)
    return [
        new_table(store, config, name, dim=config.model.dim, num_rows=size)
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

    def reading(self) -> AbstractContextManager[object]:
        """Nothing waits for it."""
        return nullcontext()

    def step(self) -> None:
        """Update the rows."""
        # torch asks for a decision: its own sparse gradients need no check.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self._optimizer.step()
        self._optimizer.zero_grad()

    def counters(self) -> RowCounters:
        """Nothing is ever cold."""
        return RowCounters(self._looked_up, 0, 0.0, self._bytes())

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """One step at a time."""
        return None

    def save(self, run: Run) -> None:
        """Plain rows are not kept."""

    def restore(self, run: Run) -> list[str] | None:
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
    make_out(config)
    columns = Columns.of(source.schema, way)
    distinct = _distinct_ids(source, way, columns)
    with (
        tempfile.TemporaryDirectory() as folder,
        rowmill.open(
            folder, memory=config.store.memory, threads=threads, seed=config.train.seed
        ) as store,
    ):
        tables = new_tables(store, config, source, way)
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
