"""Stored replacements of TorchRec's collections, with a KeyedJaggedTensor as input and TorchRec's classes as output.

TorchRec is not imported here; see `rowmill.nn.keyed`.

Shapes: F features, B samples, N ids in total, D weights per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from rowmill.errors import InvalidInput
from rowmill.nn.collection import Feature, Pooling
from rowmill.nn.embedding import rows_of
from rowmill.nn.embedding_bag import as_long
from rowmill.nn.keyed import class_beside, ragged
from rowmill.nn.stored import StoredModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.store.tables import Table


@dataclass(frozen=True)
class KeyedTable:
    """A table of a collection.

    Attributes:
        name: Name of the table in the collection.
        table: The stored table with its rows.
        num_embeddings: Number of ids; ids are in [0, num_embeddings).
        features: The keys of a batch that look up rows of this table.
        outputs: The names of the resulting vectors, one per feature.
        pooling: How the rows of a bag are combined.
    """

    name: str
    table: Table
    num_embeddings: int
    features: Sequence[str]
    outputs: Sequence[str]
    pooling: Literal["sum", "mean"] = "sum"


class _KeyedModule(StoredModule):
    """Base of both replacements: the tables, and the original collection without its weights."""

    def __init__(self, tables: Sequence[KeyedTable], source: nn.Module, inner: str) -> None:
        super().__init__()
        self.tables = tuple(tables)
        self._inner = inner
        # In a tuple, so that torch does not register it as a submodule with parameters.
        self._source = (source,)

    @property
    def source(self) -> nn.Module:
        """The original collection; its weights are on the meta device."""
        return self._source[0]

    @property
    def device(self) -> torch.device:
        """Always the CPU, where the store is. Output vectors are on the device of the ids."""
        return torch.device("cpu")

    def stored_tables(self) -> dict[str, Table]:
        """The tables by the names that the weights have in the original collection."""
        return {f"{self._inner}.{keyed.name}.weight": keyed.table for keyed in self.tables}

    def matrix_rows(self, table: Table) -> int | None:
        """Number of rows of a table's weight in the original collection."""
        return next(keyed.num_embeddings for keyed in self.tables if keyed.table is table)

    def extra_repr(self) -> str:
        """The names of the tables with their features."""
        return ", ".join(f"{keyed.name}: {list(keyed.features)}" for keyed in self.tables)


class KeyedBags(_KeyedModule):
    """Replaces TorchRec's `EmbeddingBagCollection`; made by `rowmill.convert`."""

    def __init__(
        self, tables: Sequence[KeyedTable], source: nn.Module, *, is_weighted: bool
    ) -> None:
        super().__init__(tables, source, "embedding_bags")
        self._is_weighted = is_weighted
        features = [
            Feature(output, keyed.table, keyed.pooling)
            for keyed in self.tables
            for output in keyed.outputs
        ]
        self._names = [feature.name for feature in features]
        self._dims = [feature.table.dim for feature in features]
        keys = [feature for keyed in self.tables for feature in keyed.features]
        self._pooling = Pooling(features, keys=keys)

    def forward(self, features: Any) -> Any:
        """Pool the ids of a KeyedJaggedTensor into a KeyedTensor `[B, sum of D]`.

        Raises:
            InvalidInput: The input is not a KeyedJaggedTensor, or lacks a feature or weights.
        """
        batch = ragged(features, weighted=self._is_weighted)
        pooled = self._pooling.pool(batch, training=self.trains_rows)
        return class_beside(features, "KeyedTensor")(
            keys=self._names, length_per_key=self._dims, values=pooled
        )

    def embedding_bag_configs(self) -> Any:
        """The configurations of the original collection."""
        source: Any = self.source
        return source.embedding_bag_configs()

    def is_weighted(self) -> bool:
        """Whether batches have a weight per id."""
        return self._is_weighted


class KeyedRows(_KeyedModule):
    """Replaces TorchRec's `EmbeddingCollection`; made by `rowmill.convert`."""

    def __init__(
        self, tables: Sequence[KeyedTable], source: nn.Module, *, need_indices: bool
    ) -> None:
        super().__init__(tables, source, "embeddings")
        self._need_indices = need_indices

    def forward(self, features: Any) -> dict[str, Any]:
        """A JaggedTensor per feature with the row of every id, `[ids of the feature, D]`.

        Raises:
            InvalidInput: The input is not a KeyedJaggedTensor, or lacks a feature.
        """
        batch = ragged(features, weighted=False)
        # As the collection does it: what is exported gives these ready (`per_key.py`).
        by_key = features.to_dict()
        jagged = class_beside(features, "JaggedTensor")
        out: dict[str, Any] = {}
        for keyed in self.tables:
            for name in keyed.features:
                if name not in batch.features:
                    raise InvalidInput(
                        f"the batch lacks feature {name!r}; it has {list(batch.features)}"
                    )
            given = [by_key[name] for name in keyed.features]
            ids = [as_long(part.values(), "values") for part in given]
            rows = rows_of(keyed.table, torch.cat(ids), None, training=self.trains_rows)
            parts = torch.split(rows, [part.shape[0] for part in ids])
            for output, part, own, source in zip(keyed.outputs, parts, ids, given, strict=True):
                weights = own if self._need_indices else None
                out[output] = jagged(values=part, lengths=source.lengths(), weights=weights)
        return out

    def embedding_configs(self) -> Any:
        """The configurations of the original collection."""
        source: Any = self.source
        return source.embedding_configs()

    def need_indices(self) -> bool:
        """Whether the JaggedTensors hold the ids as weights."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """D, which is the same for all tables."""
        return self.tables[0].table.dim
