"""Embeddings of a converted model whose rows are sharded over ranks; `rowmill.convert(..., ranks=ranks)` makes them.

Each module has one `ShardedCollection` for all its tables, so one forward is one exchange. The modules have no parameters, and
their state dicts are those of `rowmill.nn.dense_state_dict`: rows are saved by a `Checkpoint`. Forward is a collective: all ranks
call the modules in the same order, a rank without samples with an empty batch. Invalid input on one rank raises on all.

Shapes: N ids in all, B bags, L ids per bag of 2-D input, D weights per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rowmill.distributed.collection import ShardedCollection
from rowmill.distributed.placement import AUTO
from rowmill.errors import InvalidInput
from rowmill.nn.collection import Feature
from rowmill.nn.embedding_bag import as_long, bag_offsets, real_padding
from rowmill.nn.keyed import class_beside, ragged
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rowmill.distributed.placement import Placement, PlacementSetting
    from rowmill.distributed.ranks import Ranks
    from rowmill.integrations.torchrec.collections import KeyedCollection
    from rowmill.integrations.torchrec.keyed import KeyedTable
    from rowmill.store.tables import Table


class ShardedEmbeddingBag(nn.Module):
    """Replaces `nn.EmbeddingBag`, with the same forward."""

    def __init__(
        self, source: nn.EmbeddingBag, table: Table, ranks: Ranks, placement: PlacementSetting
    ) -> None:
        super().__init__()
        self._mode = source.mode
        self._include_last_offset = source.include_last_offset
        padding = real_padding(source.padding_idx, source.num_embeddings)
        pooling = "mean" if source.mode == "mean" else "sum"
        feature = Feature(table.name, table, pooling, padding)
        self._name = table.name
        self.rows = ShardedCollection([feature], ranks=ranks, placement=placement)

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Pool bags of ids as `rowmill.nn.EmbeddingBag` does: float32 [B, D]. A collective."""
        return self.rows(_or_error(lambda: self._batch(input, offsets, per_sample_weights)))

    def _batch(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> RaggedBatch:
        if weights is not None and self._mode != "sum":
            raise InvalidInput(f'per_sample_weights need mode="sum", got mode={self._mode!r}')
        if weights is not None and weights.shape != input.shape:
            raise InvalidInput(
                f"per_sample_weights must have the shape of the input {list(input.shape)}, got {list(weights.shape)}"
            )
        ends = bag_offsets(input, offsets, self._include_last_offset)
        factors = None if weights is None else weights.float().reshape(-1)
        return RaggedBatch(
            (self._name,), as_long(input).reshape(-1).to(input.device), ends, factors
        )


class ShardedEmbedding(nn.Module):
    """Replaces `nn.Embedding`, with the same forward."""

    def __init__(
        self, source: nn.Embedding, table: Table, ranks: Ranks, placement: PlacementSetting
    ) -> None:
        super().__init__()
        padding = real_padding(source.padding_idx, source.num_embeddings)
        feature = Feature(table.name, table, padding_idx=padding)
        self._name = table.name
        self.rows = ShardedCollection([feature], ranks=ranks, placement=placement)

    def forward(self, input: Tensor) -> Tensor:
        """Look up the rows of ids of any shape: float32 `[*input.shape, D]`. A collective."""
        ids = _or_error(
            lambda: RaggedBatch.from_single_ids({self._name: as_long(input).reshape(-1)})
        )
        out = self.rows(ids)
        return out.reshape(*input.shape, out.shape[1]).to(input.device)


class ShardedKeyedBags(nn.Module):
    """Replaces TorchRec's `EmbeddingBagCollection`, with the same forward."""

    def __init__(
        self,
        tables: Sequence[KeyedTable],
        *,
        is_weighted: bool,
        ranks: Ranks,
        placement: PlacementSetting,
    ) -> None:
        super().__init__()
        self._is_weighted = is_weighted
        features = [
            Feature(output, keyed.table, keyed.pooling)
            for keyed in tables
            for output in keyed.outputs
        ]
        self._names = tuple(feature.name for feature in features)
        self._keys = [feature for keyed in tables for feature in keyed.features]
        self.rows = ShardedCollection(features, ranks=ranks, placement=placement)

    def forward(self, features: Any) -> Any:
        """Pool the ids of a KeyedJaggedTensor into a KeyedTensor `[B, sum of D]`. A collective."""
        pooled = self.rows(_or_error(lambda: self._batch(features)))
        return class_beside(features, "KeyedTensor")(
            keys=list(self._names), length_per_key=self.rows.dims, values=pooled
        )

    def _batch(self, features: Any) -> RaggedBatch:
        batch = ragged(features, weighted=self._is_weighted)
        if list(batch.features) == self._keys:
            return RaggedBatch(self._names, batch.values, batch.offsets, batch.weights)
        places = _places(self._keys, batch)
        ends: list[int] = batch.offsets[:: max(batch.batch_size, 1)].cpu().numpy().tolist()
        if batch.batch_size == 0:
            ends = [0] * (len(batch.features) + 1)
        parts = [slice(ends[place], ends[place + 1]) for place in places]
        lengths = batch.offsets.diff().view(len(batch.features), batch.batch_size)[places].cpu()
        weights = None
        if batch.weights is not None:
            weights = torch.cat([batch.weights[part] for part in parts])
        values = torch.cat([batch.values[part] for part in parts])
        return RaggedBatch.from_lengths(self._names, values, lengths, weights)


class ShardedKeyedRows(nn.Module):
    """Replaces TorchRec's `EmbeddingCollection`, with the same forward."""

    def __init__(
        self,
        tables: Sequence[KeyedTable],
        *,
        need_indices: bool,
        ranks: Ranks,
        placement: PlacementSetting,
    ) -> None:
        super().__init__()
        self._tables = tuple(tables)
        self._need_indices = need_indices
        features = [Feature(keyed.name, keyed.table) for keyed in tables]
        self.rows = ShardedCollection(features, ranks=ranks, placement=placement)

    def forward(self, features: Any) -> dict[str, Any]:
        """A JaggedTensor per feature with the row of every id, `[ids of the feature, D]`. A collective."""
        found = self.rows(_or_error(lambda: self._batch(features)))
        jagged = class_beside(features, "JaggedTensor")
        given = features.to_dict()
        out: dict[str, Any] = {}
        for keyed, rows in zip(self._tables, self.rows.split(found).values(), strict=True):
            begin = 0
            for name, output in zip(keyed.features, keyed.outputs, strict=True):
                ids = given[name].values()
                part = rows[begin : begin + len(ids)]
                begin += len(ids)
                weights = as_long(ids, "values") if self._need_indices else None
                out[output] = jagged(values=part, lengths=given[name].lengths(), weights=weights)
        return out

    def _batch(self, features: Any) -> RaggedBatch:
        batch = ragged(features, weighted=False)
        _places([name for keyed in self._tables for name in keyed.features], batch)
        ids = {
            keyed.name: torch.cat([batch.bags(name)[0] for name in keyed.features])
            for keyed in self._tables
        }
        return RaggedBatch.from_single_ids(ids)


ShardedModule = ShardedEmbeddingBag | ShardedEmbedding | ShardedKeyedBags | ShardedKeyedRows


def sharded_module(
    source: nn.EmbeddingBag | nn.Embedding,
    table: Table,
    ranks: Ranks,
    placed: Mapping[Table, Placement],
) -> ShardedEmbeddingBag | ShardedEmbedding:
    """The replacement of an embedding module. A collective."""
    placement = str(placed.get(table, AUTO))
    if isinstance(source, nn.EmbeddingBag):
        return ShardedEmbeddingBag(source, table, ranks, placement)
    return ShardedEmbedding(source, table, ranks, placement)


def sharded_collection(
    tables: Sequence[KeyedTable],
    collection: KeyedCollection,
    ranks: Ranks,
    placed: Mapping[Table, Placement],
) -> ShardedKeyedBags | ShardedKeyedRows:
    """The replacement of a TorchRec collection. A collective."""
    placement = {keyed.table.name: str(placed.get(keyed.table, AUTO)) for keyed in tables}
    source: Any = collection.module
    if collection.kind == "embedding_bags":
        weighted = source.is_weighted()
        return ShardedKeyedBags(tables, is_weighted=weighted, ranks=ranks, placement=placement)
    indices = source.need_indices()
    return ShardedKeyedRows(tables, need_indices=indices, ranks=ranks, placement=placement)


def put_shared(
    weights: Mapping[Table, Tensor], collections: Mapping[Table, ShardedCollection], ranks: Ranks
) -> None:
    """Put the weights of rank 0 into the stores of the ranks that keep the rows, some rows at a time. A collective."""
    for table, matrix in weights.items():
        for start in range(0, len(matrix), CHUNK_ROWS):
            chunk = matrix[start : start + CHUNK_ROWS].detach().cpu().contiguous().clone()
            # Ranks may have drawn other weights, and copies of a replicated table must be equal.
            call = ranks.whereabouts.begin("weights")
            ranks.wait(dist.broadcast(chunk, src=0, group=ranks.group, async_op=True), call)
            kept = collections[table].kept_here(table, torch.arange(start, start + len(chunk)))
            table.put(kept, chunk[kept - start])


def _places(keys: Sequence[str], batch: RaggedBatch) -> list[int]:
    for key in keys:
        if key not in batch.features:
            raise InvalidInput(f"the batch lacks feature {key!r}; it has {list(batch.features)}")
    return [batch.features.index(key) for key in keys]


def _or_error(make: Callable[[], RaggedBatch]) -> RaggedBatch | Exception:
    """A batch, or the error because of which this rank has none: the exchange then raises it on every rank."""
    try:
        return make()
    except Exception as error:
        return error
