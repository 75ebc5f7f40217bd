"""The tables of a click model: in a store, or in plain torch modules for comparison.

Both have the same interface, `ClickRows`. `plain_rows` starts with the initial values that a store would draw.
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
    from collections.abc import Callable, Generator, Mapping, Sequence

    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.ctr.data import IdWay, Schema, Source
    from rowmill.optim.specs import OptimizerSpec
    from rowmill.store.store import Store
    from rowmill.store.tables import Table
    from rowmill.store.versions import NewVersion
    from rowmill.train.rows import StepPipeline
    from rowmill.train.state import Run


@dataclass(frozen=True)
class Columns:
    """The table of each id column of a batch, and the padding id of each table, if it has one.

    Without histories every column has its own table, and there is no padding.
    """

    tables: tuple[int, ...]
    paddings: tuple[int | None, ...]

    @classmethod
    def of(cls, schema: Schema, way: IdWay) -> Columns:
        """The columns of a log. In a feature with a history, missing values are padding and have no row."""
        paddings = [way.missing if f in schema.targets else None for f in range(len(schema.ids))]
        return cls(tuple(schema.id_features), tuple(paddings))

    def of_table(self, table: int) -> list[int]:
        """The columns of one table."""
        return [column for column, used in enumerate(self.tables) if used == table]


def stored_features(tables: Sequence[Table], columns: Columns) -> list[Feature]:
    """One feature per id column."""
    return [
        Feature(f"{column} {tables[table].name}", tables[table], "sum", columns.paddings[table])
        for column, table in enumerate(columns.tables)
    ]


def pooled_dtype(config: Config) -> torch.dtype:
    """The dtype of pooled vectors: bfloat16 for a DLRM with bfloat16 rows and bfloat16 products, else float32.

    A DLRM pools one id per bag, so the vectors are exact in bfloat16. Other models sum vectors, which needs float32.
    """
    narrow = "fp32" not in (config.rows.dtype, config.train.precision)
    return torch.bfloat16 if narrow and config.model.kind == "dlrm" else torch.float32


class ClickRows(RowSide, Protocol):
    """Rows with a module that pools the ids of a batch."""

    @property
    def embeddings(self) -> nn.Module:
        """The module; called as `embeddings(inputs)`, it returns `[B, S, D]`."""
        ...

    def inputs(self, ids_BS: Tensor) -> Any:
        """The argument of `embeddings` for the ids of a batch."""
        ...

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Prefetch these ids for a batch in `steps` steps; 1 is the next step."""
        ...

    def reading(self) -> AbstractContextManager[object]:
        """A step for evaluation: it reads announced rows and trains nothing."""
        ...


class StoredClickRows(StoredRows):
    """Rows in a store; the backward pass updates them."""

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
        """Prefetch the rows in the store."""
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
        """A store step: announced rows are held until a step begins, also in an evaluation."""
        return self.store.forward()


@contextmanager
def stored_rows(
    config: Config,
    source: Source,
    *,
    way: IdWay,
    sizes: Mapping[str, int | None],
    threads: int,
    identity: dict[str, Any],
    console: Console,
) -> Generator[StoredClickRows]:
    """The store of a run, with one table per id feature, of these sizes by name."""
    with open_rows(config, threads=threads, identity=identity, sizes=sizes) as store:
        tables = new_tables(store, config, sizes)
        columns = Columns.of(source.schema, way)
        yield StoredClickRows(store, tables, columns, console, pooled_dtype(config))


def table_sizes(schema: Schema, way: IdWay) -> dict[str, int | None]:
    """The name of the table of each id feature, and its number of ids; None: any 64-bit id."""
    sizes = way.rows(len(schema.ids)) or [None] * len(schema.ids)
    return dict(zip(schema.ids, sizes, strict=True))


def new_tables(store: Store, config: Config, sizes: Mapping[str, int | None]) -> list[Table]:
    """Tables of these names and numbers of ids; None: any 64-bit id."""
    return [
        new_table(store, config, name, dim=config.model.dim, num_rows=size)
        for name, size in sizes.items()
    ]


class PlainRows:
    """Rows in `torch.nn.EmbeddingBag` modules, updated by a torch optimizer.

    Every distinct id of the log has a row from the start, so the memory grows with the number of distinct ids.
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
        """The row number of every id: its position among the distinct ids of its table."""
        ids = ids_BS.numpy()
        self._looked_up += ids.size
        places = [
            np.searchsorted(self._distinct[table], ids[:, column])
            for column, table in enumerate(self._columns.tables)
        ]
        return torch.from_numpy(np.stack(places, axis=1))

    def lookahead(self, ids_BS: Tensor, *, steps: int) -> None:
        """Does nothing: all rows are in memory."""

    def reading(self) -> AbstractContextManager[object]:
        """A context manager that does nothing."""
        return nullcontext()

    def step(self) -> None:
        """Update the rows."""
        # torch warns unless the check is set explicitly; gradients made by torch need no check.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            self._optimizer.step()
        self._optimizer.zero_grad()

    def counters(self) -> RowCounters:
        """Lookups and bytes; no row is ever cold."""
        return RowCounters(self._looked_up, 0, 0.0, self._bytes())

    def pipeline(self, look_up: Callable[[Any], Any], in_flight: int) -> StepPipeline | None:
        """None: plain rows run one step at a time."""
        return None

    def save(self, run: Run, version: NewVersion | None = None) -> None:
        """Does nothing: plain rows are not saved."""

    def restore(self, run: Run) -> list[str] | None:
        """None: plain rows are not saved."""
        return None

    def summary(self) -> dict[str, Any]:
        """Number and bytes of rows."""
        rows = sum(len(known) for known in self._distinct)
        return {"live_rows": rows, "live_row_bytes": self._bytes()}

    def counts(self) -> dict[str, int]:
        """Empty: plain rows count nothing."""
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
    """All distinct ids of the log in torch modules, with the initial values that a store would draw."""
    make_out(config)
    columns = Columns.of(source.schema, way)
    distinct = _distinct_ids(source, way, columns)
    with (
        tempfile.TemporaryDirectory() as folder,
        rowmill.open(
            folder, memory=config.store.memory, threads=threads, seed=config.train.seed
        ) as store,
    ):
        tables = new_tables(store, config, table_sizes(source.schema, way))
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
                f"rows.optimizer = {kind!r} does not work with --plain: torch has no such optimizer for sparse "
                "gradients. Drop --plain, or use sgd, adagrad or adam"
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
