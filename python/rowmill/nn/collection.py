"""Many features at once: one store call per group of tables.

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
    """A feature of a batch, the table its ids are rows of, and how a bag becomes one vector.

    Several features may share a table.
    """

    name: str
    table: Table
    pooling: Literal["sum", "mean"] = "sum"
    padding_idx: int | None = None


class Pooling:
    """Lookups of many features, one call of the store per group of tables.

    Args:
        features: What is looked up.
        keys: Under which name of a batch each feature has its ids; None: under its own.
        output_dtype: float32 or bfloat16, of pooled vectors.
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
            raise InvalidInput("features of one collection must have tables of one store")
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
        """Pooled vectors of every feature, [B, sum of dims]."""
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
        """For each call where its features lie in a batch of these: of batch after batch the same."""
        if self._placed is None or self._placed[0] != names:
            place_of = {name: place for place, name in enumerate(names)}
            missing = list(dict.fromkeys(key for key in self._keys if key not in place_of))
            if missing:
                raise InvalidInput(f"the batch lacks features {missing}; it has {list(names)}")
            places = [place_of[key] for key in self._keys]
            self._placed = names, [[places[at] for at in call.positions] for call in self._calls]
        return self._placed[1]


class _Call:
    """What one call of the store is asked for every batch."""

    def __init__(self, features: Sequence[Feature], positions: list[int]) -> None:
        chosen = [features[position] for position in positions]
        self.positions = positions
        self.tables = [feature.table for feature in chosen]
        self.means = [feature.pooling == "mean" for feature in chosen]
        self.paddings = [feature.padding_idx for feature in chosen]


class EmbeddingCollection(StoredModule):
    """Pooled vectors of many features, side by side.

    Tables whose dim, optimizer and initializer agree form a group and cost one call of the store,
    forward and backward, however many there are.

    Args:
        features: What is pooled.
        output_dtype: bfloat16 for models that multiply in it: sums of rows are taken in float32 and rounded to the
            nearest, and half the bytes are written. Gradients come back as bfloat16, too, and are added up as float32.

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
            batch: Holds every feature of this collection, in any order; others are left alone.

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
        """The result of forward by feature: views, no copies."""
        names = [feature.name for feature in self.features]
        return dict(zip(names, columns(pooled, self.dims), strict=True))

    def extra_repr(self) -> str:
        """The features with their tables."""
        return ", ".join(f"{feature.name}->{feature.table.name}" for feature in self.features)


def _shared(features: Sequence[Feature]) -> list[list[int]]:
    """Positions of the features that share a store call: of one group, and one padding per table."""
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
    """Raise for a type that pooled vectors cannot have."""
    if dtype not in (torch.float32, torch.bfloat16):
        raise InvalidInput(f"output_dtype must be torch.float32 or torch.bfloat16, got {dtype!r}")


def columns(pooled: Tensor, widths: int | list[int]) -> tuple[Tensor, ...]:
    """Views of the columns of each feature."""
    return torch.split(pooled, widths, dim=1)


class StackedBags(nn.Module):
    """One pooled vector per feature, stacked: what models take as their `embeddings`.

    Args:
        features: Features whose tables all have the same dim.
        output_dtype: As of `EmbeddingCollection`.
    """

    def __init__(
        self, features: Iterable[Feature], *, output_dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.collection = EmbeddingCollection(features, output_dtype=output_dtype)
        if len(set(self.collection.dims)) != 1:
            raise InvalidInput(f"stacked features need one dim, got {self.collection.dims}")
        self.names = tuple(feature.name for feature in self.collection.features)

    def forward(
        self, ids: Tensor | Sequence[Tensor], offsets: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Pool the ids of every feature.

        Args:
            ids: int64 [B, F], or one flat tensor per feature.
            offsets: With flat ids, where each of the B bags of a feature begins.

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
                raise InvalidInput("offsets belong to flat ids: pass one id tensor per feature")
            return RaggedBatch.from_dense(self.names, ids)
        if offsets is None or len(ids) != count or len(offsets) != count:
            raise InvalidInput(f"flat ids need {count} id tensors and as many offset tensors")
        lengths = [
            torch.cat([starts, starts.new_full((1,), len(flat))]).diff()
            for flat, starts in zip(ids, offsets, strict=True)
        ]
        return RaggedBatch.from_lengths(self.names, torch.cat(list(ids)), torch.cat(lengths))
