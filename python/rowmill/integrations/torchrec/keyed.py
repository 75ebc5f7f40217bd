"""The stored twins of TorchRec's collections: a KeyedJaggedTensor in, a KeyedTensor or JaggedTensors out.

TorchRec is not imported here. Inputs are recognised by their methods. The classes of outputs are taken from the module
that defines the class of the input.

Shapes: F features, B samples, N ids in all, D weights per row.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.nn.collection import Feature, Pooling
from rowmill.nn.embedding import rows_of
from rowmill.nn.embedding_bag import as_long
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import StoredModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.store.tables import Table

_KJT = ("keys", "values", "offsets", "lengths", "stride", "weights_or_none")


@dataclass(frozen=True)
class KeyedTable:
    """A table of a collection.

    Attributes:
        name: Of the table in the collection.
        table: Where its rows live.
        num_embeddings: Number of ids.
        features: The keys of a batch whose ids are its rows.
        outputs: What their vectors are called.
        pooling: How a bag becomes one vector.
    """

    name: str
    table: Table
    num_embeddings: int
    features: Sequence[str]
    outputs: Sequence[str]
    pooling: Literal["sum", "mean"] = "sum"


class _KeyedModule(StoredModule):
    """What both have: tables by name, and the collection they stand in for, without its weights."""

    def __init__(self, tables: Sequence[KeyedTable], source: nn.Module, inner: str) -> None:
        super().__init__()
        self.tables = tuple(tables)
        self._inner = inner
        # In a tuple, so that it is no submodule: its weights are not ours.
        self._source = (source,)

    @property
    def source(self) -> nn.Module:
        """The collection this one stands in for; its weights are on the meta device."""
        return self._source[0]

    @property
    def device(self) -> torch.device:
        """Rows are in a store; vectors go where the ids are."""
        return torch.device("cpu")

    def stored_tables(self) -> dict[str, Table]:
        """The tables, named as in the collection."""
        return {f"{self._inner}.{keyed.name}.weight": keyed.table for keyed in self.tables}

    def matrix_rows(self, table: Table) -> int | None:
        """As in the collection."""
        return next(keyed.num_embeddings for keyed in self.tables if keyed.table is table)

    def extra_repr(self) -> str:
        """The tables with their features."""
        return ", ".join(f"{keyed.name}: {list(keyed.features)}" for keyed in self.tables)


class KeyedBags(_KeyedModule):
    """Stands in for an `EmbeddingBagCollection` of TorchRec; `rowmill.convert` makes it."""

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
        """A KeyedTensor `[B, sum of D]` of a KeyedJaggedTensor."""
        batch = _ragged(features, weighted=self._is_weighted)
        pooled = self._pooling.pool(batch, training=self.trains_rows)
        return _class_beside(features, "KeyedTensor")(
            keys=self._names, length_per_key=self._dims, values=pooled
        )

    def embedding_bag_configs(self) -> Any:
        """As the collection's."""
        source: Any = self.source
        return source.embedding_bag_configs()

    def is_weighted(self) -> bool:
        """Whether a batch brings a weight for every id."""
        return self._is_weighted


class KeyedRows(_KeyedModule):
    """Stands in for an `EmbeddingCollection` of TorchRec; `rowmill.convert` makes it."""

    def __init__(
        self, tables: Sequence[KeyedTable], source: nn.Module, *, need_indices: bool
    ) -> None:
        super().__init__(tables, source, "embeddings")
        self._need_indices = need_indices

    def forward(self, features: Any) -> dict[str, Any]:
        """By feature, a JaggedTensor with the row of every id, `[ids of the feature, D]`."""
        batch = _ragged(features, weighted=False)
        jagged = _class_beside(features, "JaggedTensor")
        out: dict[str, Any] = {}
        for keyed in self.tables:
            for name in keyed.features:
                if name not in batch.features:
                    raise InvalidInput(
                        f"the batch lacks feature {name!r}; it has {list(batch.features)}"
                    )
            bags = [batch.bags(name) for name in keyed.features]
            ids = torch.cat([ids for ids, _ in bags])
            rows = rows_of(keyed.table, ids, None, training=self.trains_rows)
            parts = torch.split(rows, [len(ids) for ids, _ in bags])
            for output, part, (ids, offsets) in zip(keyed.outputs, parts, bags, strict=True):
                weights = ids if self._need_indices else None
                out[output] = jagged(values=part, lengths=offsets.diff(), weights=weights)
        return out

    def embedding_configs(self) -> Any:
        """As the collection's."""
        source: Any = self.source
        return source.embedding_configs()

    def need_indices(self) -> bool:
        """Whether the ids come along as weights."""
        return self._need_indices

    def embedding_dim(self) -> int:
        """D, of all tables."""
        return self.tables[0].table.dim


def _ragged(features: Any, *, weighted: bool) -> RaggedBatch:
    if not all(callable(getattr(features, method, None)) for method in _KJT):
        raise InvalidInput(
            f"features must be a KeyedJaggedTensor, got a {type(features).__name__}; make one with "
            "KeyedJaggedTensor.from_lengths_sync(keys, values, lengths)"
        )
    varies = getattr(features, "variable_stride_per_key", None)
    if callable(varies) and varies():
        raise InvalidInput(
            "features with a batch size of their own per key are not supported: give all keys the same"
        )
    weights: Tensor | None = features.weights_or_none() if weighted else None
    if weighted and weights is None:
        raise InvalidInput("is_weighted is True, but the features have no weights: give them some")
    values, offsets = features.values(), features.offsets()
    return RaggedBatch(
        tuple(features.keys()),
        as_long(values, "values").to(values.device),
        as_long(offsets, "offsets").to(values.device),
        None if weights is None else weights.float(),
    )


def _class_beside(features: Any, name: str) -> Any:
    """The class of that name in the module that defines the class of the features, or one it derives from."""
    for class_ in type(features).__mro__:
        found = getattr(sys.modules.get(class_.__module__), name, None)
        if found is not None:
            return found
    raise InvalidInput(
        f"no {name} lies beside {type(features).__name__} in {type(features).__module__}; pass TorchRec's "
        "KeyedJaggedTensor"
    )
