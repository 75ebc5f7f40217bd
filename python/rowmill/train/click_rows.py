"""The tables of a click model: in a store, or in plain torch modules to compare with.

Both give the model its `embeddings` and take part in every step, so that the task does not ask which one it has.
`plain_rows` begins with the initial values that the store would have drawn.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import rowmill
from rowmill.config import ConfigError
from rowmill.models import FeatureBags
from rowmill.nn import Feature, StackedBags
from rowmill.optim import SGD, Adagrad, Adam, optimizer_to_dict
from rowmill.train.folder import make_out
from rowmill.train.rows import RowCounters, RowSide, StoredRows, new_table, open_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from numpy.typing import NDArray
    from rich.console import Console

    from rowmill.config import Config
    from rowmill.data import IdWay, Source
    from rowmill.optim import OptimizerSpec
    from rowmill.store import Store
    from rowmill.tables import Table


class ClickRows(RowSide, Protocol):
    """Rows that pool the ids of a batch."""

    @property
    def embeddings(self) -> nn.Module:
        """Called as `embeddings(ids, offsets)`, gives `[B, F, D]`."""
        ...

    def inputs(self, ids_BF: Tensor) -> Tensor:
        """What the embeddings take for the ids of a batch."""
        ...

    def lookahead(self, ids_BF: Tensor, *, steps: int) -> None:
        """A batch with these ids comes in so many steps: 1 is the next."""
        ...


class StoredClickRows(StoredRows):
    """Rows in a store, updated by backward itself."""

    def __init__(self, store: Store, tables: list[Table], console: Console) -> None:
        super().__init__(store, tables, console)
        self.embeddings: nn.Module = StackedBags(Feature(table.name, table) for table in tables)

    def inputs(self, ids_BF: Tensor) -> Tensor:
        """The ids themselves."""
        return ids_BF

    def lookahead(self, ids_BF: Tensor, *, steps: int) -> None:
        """Ask the store to have the rows in memory by the time they are needed."""
        ids_FB = ids_BF.t().contiguous()
        self.store.lookahead(dict(zip(self.tables, ids_FB, strict=True)), steps=steps)


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
        yield StoredClickRows(store, _tables(store, config, source, way), console)


def _tables(store: Store, config: Config, source: Source, way: IdWay) -> list[Table]:
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
        self, distinct: list[NDArray[np.int64]], weights: list[Tensor], optimizer: OptimizerSpec
    ) -> None:
        self._distinct = distinct
        self._looked_up = 0
        self.embeddings: nn.Module = FeatureBags(
            nn.EmbeddingBag(
                weight.shape[0], weight.shape[1], mode="sum", sparse=True, _weight=weight
            )
            for weight in weights
        )
        self._parameters = list(self.embeddings.parameters())
        self._optimizer = _torch_optimizer(self._parameters, optimizer)

    def inputs(self, ids_BF: Tensor) -> Tensor:
        """The place of every id among the distinct ids of its feature."""
        ids = ids_BF.numpy()
        self._looked_up += ids.size
        places = [np.searchsorted(known, ids[:, f]) for f, known in enumerate(self._distinct)]
        return torch.from_numpy(np.stack(places, axis=1))

    def lookahead(self, ids_BF: Tensor, *, steps: int) -> None:
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
    make_out(config)
    distinct = _distinct_ids(source, way)
    with (
        tempfile.TemporaryDirectory() as folder,
        rowmill.open(
            folder, memory=config.store.memory, threads=threads, seed=config.train.seed
        ) as store,
    ):
        tables = _tables(store, config, source, way)
        weights = [
            table.get(torch.from_numpy(ids)) for table, ids in zip(tables, distinct, strict=True)
        ]
    yield PlainRows(distinct, weights, optimizer)


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


def _distinct_ids(source: Source, way: IdWay) -> list[NDArray[np.int64]]:
    distinct = [np.empty(0, np.int64) for _ in source.schema.ids]
    for block in source.blocks(0, source.rows):
        ids = way.apply(block.ids)
        distinct = [np.union1d(known, ids[:, f]) for f, known in enumerate(distinct)]
    return distinct
