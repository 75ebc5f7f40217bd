"""Pooled lookups of many features, with one store call per group of tables.

Shapes: B samples, F features, D weights per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from rowmill.errors import InvalidInput
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import StoredModule
from rowmill.ops.lookup import lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rowmill.store.tables import Destination, Table


@dataclass(frozen=True)
class Feature:
    """A feature of a batch, the table of its ids, and how a bag is pooled.

    Several features may share a table. Ids equal to `padding_idx` are ignored.
    """

    name: str
    table: Table
    pooling: Literal["sum", "mean"] = "sum"
    padding_idx: int | None = None


class Pooling:
    """Lookups of many features, one call of the store per group of tables.

    Args:
        features: The features, with distinct names and tables of one store.
        keys: For each feature, the name of its ids in a batch; None: the feature's name.
        output_dtype: dtype of pooled vectors, float32 or bfloat16.
    """

    def __init__(
        self,
        features: Iterable[Feature],
        *,
        keys: Sequence[str] | None = None,
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.features = tuple(features)
        names = [feature.name for feature in self.features]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"features must have distinct names, got {names}")
        if len({feature.table.store for feature in self.features}) != 1:
            raise InvalidInput(
                "features of a collection must have tables of one store: use one collection per store"
            )
        for feature in self.features:
            if feature.pooling not in ("sum", "mean"):
                raise InvalidInput(
                    f'pooling of {feature.name!r} must be "sum" or "mean", got {feature.pooling!r}'
                )
        check_output_dtype(output_dtype)
        self._dtype = output_dtype
        self._keys = names if keys is None else list(keys)
        self._calls = [_Call(self.features, positions) for positions in _shared(self.features)]
        self._placed: tuple[tuple[str, ...], list[list[int]]] | None = None

    def pool(self, batch: RaggedBatch, *, training: bool) -> Tensor:
        """Pooled vectors of every feature, `output_dtype` [B, sum of dims], on the batch's device."""
        weights = batch.weights
        device = batch.values.device
        pooled: dict[int, Tensor] = {}
        for call, places in zip(self._calls, self._places(batch.features), strict=True):
            out = lookup(
                call.tables,
                batch.values.cpu(),
                batch.offsets.cpu(),
                None if weights is None else weights.cpu(),
                features=places,
                means=call.means,
                paddings=call.paddings,
                bags=batch.batch_size,
                training=training,
                dtype=self._dtype,
            )
            if len(self._calls) == 1:
                return out.to(device)
            pooled.update(zip(call.positions, columns(out, call.tables[0].dim), strict=True))
        return torch.cat([pooled[position] for position in sorted(pooled)], dim=1).to(device)

    def _places(self, names: tuple[str, ...]) -> list[list[int]]:
        """For each call, the positions of its features in a batch with these names; cached, as batches repeat."""
        if self._placed is None or self._placed[0] != names:
            place_of = {name: place for place, name in enumerate(names)}
            missing = list(dict.fromkeys(key for key in self._keys if key not in place_of))
            if missing:
                raise InvalidInput(f"the batch lacks features {missing}; it has {list(names)}")
            places = [place_of[key] for key in self._keys]
            self._placed = names, [[places[at] for at in call.positions] for call in self._calls]
        return self._placed[1]


class _Call:
    """Arguments of one call of the store, equal for every batch."""

    def __init__(self, features: Sequence[Feature], positions: list[int]) -> None:
        chosen = [features[position] for position in positions]
        self.positions = positions
        self.tables = [feature.table for feature in chosen]
        self.means = [feature.pooling == "mean" for feature in chosen]
        self.paddings = [feature.padding_idx for feature in chosen]


class EmbeddingCollection(StoredModule):
    """Pooled vectors of many features, concatenated.

    Tables with equal dim, dtype, optimizer and initializer that all have, or all lack, a stamp form a group. A group
    takes one call of the store per forward and one per backward.

    Args:
        features: The features to pool.
        output_dtype: float32, or bfloat16 for layers that run in bfloat16: rows are summed in float32 and rounded to
            nearest, which halves the bytes written. Gradients then arrive in bfloat16 and are summed in float32.

    Examples:
        >>> import tempfile, rowmill
        >>> store = rowmill.open(tempfile.mkdtemp(), memory="16MiB")
        >>> sgd = rowmill.optim.SGD(lr=0.1)
        >>> tables = [store.table(name, dim=4, optimizer=sgd) for name in ("user", "clicks")]
        >>> embeddings = EmbeddingCollection([Feature(t.name, t) for t in tables])
        >>> batch = RaggedBatch.from_lists({"user": [[7], [8]], "clicks": [[1, 2, 3], []]})
        >>> pooled = embeddings(batch)
        >>> pooled.shape, embeddings.split(pooled)["clicks"].shape
        (torch.Size([2, 8]), torch.Size([2, 4]))
    """

    def __init__(
        self, features: Iterable[Feature], *, output_dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self._pooling = Pooling(features, output_dtype=output_dtype)
        self.features = self._pooling.features

    def stored_tables(self) -> dict[str, Table]:
        """The tables, as `<table name>.weight`."""
        return {f"{feature.table.name}.weight": feature.table for feature in self.features}

    @property
    def dims(self) -> list[int]:
        """The width of each feature's vector."""
        return [feature.table.dim for feature in self.features]

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Pool the bags of every feature.

        Args:
            batch: Has every feature of this collection, in any order; other features are ignored.

        Returns:
            `output_dtype` [B, sum of dims], the features in the order of the constructor.
        """
        return self._pooling.pool(batch, training=self.trains_rows)

    def lookahead(
        self, batch: RaggedBatch, *, into: Destination = "buffer", steps: int = 1
    ) -> bool:
        """Announce the rows of a coming batch in one call; see `Store.lookahead`."""
        ids: dict[Table, Tensor] = {}
        for feature in self.features:
            flat, _ = batch.bags(feature.name)
            known = ids.get(feature.table)
            ids[feature.table] = flat if known is None else torch.cat([known, flat])
        return self.features[0].table.store.lookahead(ids, into=into, steps=steps)

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """Split the result of forward by feature, `[B, dim]` each, into views without copies."""
        names = [feature.name for feature in self.features]
        return dict(zip(names, columns(pooled, self.dims), strict=True))

    def extra_repr(self) -> str:
        """Names of the features and their tables."""
        return ", ".join(f"{feature.name}->{feature.table.name}" for feature in self.features)


def _shared(features: Sequence[Feature]) -> list[list[int]]:
    """Positions of the features that share a store call: features of one group, with one padding id per table."""
    calls: list[list[int]] = []
    for position, feature in enumerate(features):
        for call in calls:
            others = [features[other] for other in call]
            if others[0].table.group == feature.table.group and all(
                other.table is not feature.table or other.padding_idx == feature.padding_idx
                for other in others
            ):
                call.append(position)
                break
        else:
            calls.append([position])
    return calls


def check_output_dtype(dtype: torch.dtype) -> None:
    """Raise `InvalidInput` unless `dtype` is float32 or bfloat16."""
    if dtype not in (torch.float32, torch.bfloat16):
        raise InvalidInput(f"output_dtype must be torch.float32 or torch.bfloat16, got {dtype!r}")


def columns(pooled: Tensor, widths: int | list[int]) -> tuple[Tensor, ...]:
    """Split `pooled` into views of each feature's columns."""
    return torch.split(pooled, widths, dim=1)


class StackedBags(nn.Module):
    """One pooled vector per feature, stacked: the `embeddings` of click models.

    Args:
        features: Features whose tables all have the same dim.
        output_dtype: As for `EmbeddingCollection`.
    """

    def __init__(
        self, features: Iterable[Feature], *, output_dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.collection = EmbeddingCollection(features, output_dtype=output_dtype)
        if len(set(self.collection.dims)) != 1:
            raise InvalidInput(f"stacked features must have equal dims, got {self.collection.dims}")
        self.names = tuple(feature.name for feature in self.collection.features)

    def forward(
        self, ids: Tensor | Sequence[Tensor], offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Pool the ids of every feature.

        Args:
            ids: int64 [B, F], or one flat tensor per feature.
            offsets: With flat ids, per feature the start of each of its B bags.

        Returns:
            `output_dtype` [B, F, D].
        """
        batch = self._batch(ids, offsets)
        return self.collection(batch).view(batch.batch_size, len(self.names), -1)

    def lookahead(
        self,
        ids: Tensor | Sequence[Tensor],
        offsets: Sequence[Tensor] | None = None,
        *,
        into: Destination = "buffer",
        steps: int = 1,
    ) -> bool:
        """Announce the rows of a coming batch; arguments as in forward and `Store.lookahead`."""
        return self.collection.lookahead(self._batch(ids, offsets), into=into, steps=steps)

    def _batch(
        self, ids: Tensor | Sequence[Tensor], offsets: Sequence[Tensor] | None
    ) -> RaggedBatch:
        count = len(self.names)
        if isinstance(ids, Tensor):
            if offsets is not None:
                raise InvalidInput(
                    "offsets need flat ids: pass one id tensor per feature, or [B, F] ids without offsets"
                )
            return RaggedBatch.from_dense(self.names, ids)
        if offsets is None or len(ids) != count or len(offsets) != count:
            raise InvalidInput(f"flat ids need {count} id tensors and as many offset tensors")
        lengths = [
            torch.cat([starts, starts.new_full((1,), len(flat))]).diff()
            for flat, starts in zip(ids, offsets, strict=True)
        ]
        return RaggedBatch.from_lengths(self.names, torch.cat(list(ids)), torch.cat(lengths))
