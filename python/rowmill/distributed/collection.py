"""Pooled vectors of many features whose rows are spread over the stores of all ranks."""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rowmill.distributed.exchange import Exchange, Lookups, Owned, RowsOnWire
from rowmill.distributed.strategy import Lane, Strategy, lanes
from rowmill.errors import InvalidInput
from rowmill.nn.stored import StoredModule
from rowmill.ops.exchange import Bags, RecoveredFeature, recover, recover_backward
from rowmill.ops.lookup import lookup
from rowmill.optim import optimizer_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.traffic import Traffic
    from rowmill.nn import Feature
    from rowmill.ragged import RaggedBatch
    from rowmill.tables import Table


class ShardedCollection(StoredModule):
    """An `EmbeddingCollection` over the stores of all ranks: each row lies with the one rank that owns it.

    Every rank opens a store of its own with the same seed, makes the same tables in the same order, and looks up its own
    part of the batch. A row gets the sum of the gradients of all ranks, in one update. Forward and backward are
    collectives: a rank without samples takes part with a batch of none.

    Args:
        features: As for `EmbeddingCollection`; features of one table share their `padding_idx`.
        ranks: Who takes part.
        strategy: How categories share messages; results are equal.
        rows_on_wire: "fp32", or "bf16" for half the bytes of rows and gradients, rounded to the nearest.
    """

    def __init__(
        self,
        features: Iterable[Feature],
        *,
        ranks: Ranks,
        strategy: Strategy = "packed",
        rows_on_wire: RowsOnWire = "fp32",
    ) -> None:
        super().__init__()
        self.ranks = ranks

        def make() -> tuple[tuple[_Plan, Exchange], dict[str, Any]]:
            plan = _Plan(tuple(features))
            exchange = Exchange(ranks, plan.lanes(strategy), rows_on_wire)
            said = {"the strategy": strategy, "the rows on the wire": rows_on_wire}
            return (plan, exchange), said | plan.described()

        self._plan, self._exchange = ranks.agree(make, "the collection")
        self.features = self._plan.features
        self._features_by_lane = [
            [f for f in self._plan.by_table if f.place in lane.places]
            for lane in self._exchange.lanes
        ]
        self._recovered = [
            [
                RecoveredFeature(f.feature.table.dim, f.column, f.feature.pooling == "mean")
                for f in placed
            ]
            for placed in self._features_by_lane
        ]
        self._width = sum(self.dims)

    def stored_tables(self) -> dict[str, Table]:
        """The tables of this rank's store, as `<table name>.weight`."""
        return {f"{feature.table.name}.weight": feature.table for feature in self.features}

    def matrix_rows(self, table: Table) -> int | None:
        """No rank has a matrix of all weights."""
        raise InvalidInput(
            f"the rows of table {table.name!r} are spread over {self.ranks.count} ranks: save them with "
            "store.checkpoint() on every rank, and the rest of the model with "
            "rowmill.nn.dense_state_dict(model)"
        )

    @property
    def dims(self) -> list[int]:
        """The width of each feature's vector."""
        return [feature.table.dim for feature in self.features]

    @property
    def traffic(self) -> Traffic:
        """Rounds and bytes of this rank."""
        return self._exchange.traffic

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Pool the bags of this rank's samples.

        Args:
            batch: Exactly the features of this collection, in any order.

        Returns:
            float32 [B, sum of dims], the features in the order of the constructor.

        Raises:
            InvalidInput: On every rank, if the batch of one is wrong.
            ExchangeFailed: On every rank, if one could not read its rows.
        """
        training, samples = self.trains_rows, batch.batch_size
        asked: list[tuple[Lookups, Tensor, Tensor | None]] = []
        failure = None
        try:
            asked = self._plan.look_up(batch, self._features_by_lane, self._exchange.lanes)
        except Exception as error:
            failure = error
        lookups = [lookups for lookups, _, _ in asked] if failure is None else failure
        with torch.no_grad():
            sent, owned = self._exchange.ask(lookups, training=training)
        bags = [
            Bags(mine.message, mine.combined, offsets, weights, recovered, samples, self._width)
            for mine, (_, offsets, weights), recovered in zip(
                sent, asked, self._recovered, strict=True
            )
        ]
        rows = self._read(owned, training)
        anchor = _anchor if training else None
        if isinstance(rows, Exception):
            self._exchange.send_rows(rows, sent, owned)
            raise AssertionError("a rank that could not read raises")
        out = _Rows.apply(anchor, (self._exchange, sent, owned, bags), *rows)
        assert isinstance(out, Tensor)
        return out.to(batch.values.device)

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """The result of forward by feature: views, no copies."""
        names = [feature.name for feature in self.features]
        return dict(zip(names, torch.split(pooled, self.dims, dim=1), strict=True))

    def extra_repr(self) -> str:
        """The features with their tables."""
        return ", ".join(f"{feature.name}->{feature.table.name}" for feature in self.features)

    def _read(self, owned: Sequence[Owned], training: bool) -> list[Tensor] | Exception:
        """The distinct rows that this rank is asked for, flat, lane by lane."""
        tables = self._plan.tables
        rows: list[Tensor] = []
        try:
            for lane, asked in zip(self._exchange.lanes, owned, strict=True):
                ids = torch.split(asked.unique.ids, [int(count) for count in asked.unique.counts])
                # A table without ids is asked as well: its step counts, as it would on one rank.
                parts = [
                    _rows_of(tables[place], of_table, training)
                    for place, of_table in zip(lane.places, ids, strict=True)
                ]
                rows.append(torch.cat(parts))
        except Exception as error:
            return error
        return rows


class _Placed:
    """A feature, the place of its table among the tables, and its first column in the output."""

    def __init__(self, feature: Feature, place: int, column: int) -> None:
        self.feature = feature
        self.place = place
        self.column = column


class _Plan:
    """Tables side by side as their groups are, and the features of each."""

    def __init__(self, features: tuple[Feature, ...]) -> None:
        self.features = features
        names = [feature.name for feature in features]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"features must have distinct names, got {names}")
        if len({feature.table.store for feature in features}) != 1:
            raise InvalidInput("features of one collection must have tables of one store")
        self.paddings: dict[Table, int | None] = {}
        for feature in features:
            if feature.pooling not in ("sum", "mean"):
                raise InvalidInput(
                    f'pooling of {feature.name!r} must be "sum" or "mean", got {feature.pooling!r}'
                )
            padding = self.paddings.setdefault(feature.table, feature.padding_idx)
            if padding != feature.padding_idx:
                raise InvalidInput(
                    f"features of table {feature.table.name!r} must have one padding_idx, got {padding} and "
                    f"{feature.padding_idx}"
                )
        tables = list(self.paddings)
        first_of_group = {table.group: at for at, table in reversed(list(enumerate(tables)))}
        self.tables = sorted(tables, key=lambda table: first_of_group[table.group])
        place_of = {table: place for place, table in enumerate(self.tables)}
        columns = [0]
        for feature in features:
            columns.append(columns[-1] + feature.table.dim)
        placed = [
            _Placed(feature, place_of[feature.table], column)
            for feature, column in zip(features, columns[:-1], strict=True)
        ]
        self.by_table = sorted(placed, key=lambda feature: feature.place)

    def lanes(self, strategy: Strategy) -> list[Lane]:
        """The lanes of a strategy."""
        groups = [table.group for table in self.tables]
        categories = [_category(table.name) for table in self.tables]
        return lanes(strategy, groups, categories, [table.dim for table in self.tables])

    def described(self) -> dict[str, Any]:
        """What ranks must have in common."""
        features = [(f.name, f.table.name, f.pooling, f.padding_idx) for f in self.features]
        tables = {f"table {table.name!r}": _described(table) for table in self.tables}
        return {"the features": features, "the seed": self.tables[0].store.seed, **tables}

    def look_up(
        self,
        batch: RaggedBatch,
        features_by_lane: Sequence[Sequence[_Placed]],
        lanes: Sequence[Lane],
    ) -> list[tuple[Lookups, Tensor, Tensor | None]]:
        """Of every lane what a batch looks up, where its bags begin, and their weights."""
        place_of = self._places(batch)
        size, offsets, values = batch.batch_size, batch.offsets.cpu(), batch.values.cpu()
        weights = None if batch.weights is None else batch.weights.cpu()
        lengths = offsets.diff()
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((lengths < 0).any()):
            raise InvalidInput(
                f"offsets must rise from 0 to the number of ids ({len(values)}), got "
                f"{offsets[0]}..{offsets[-1]}{' with falls' if bool((lengths < 0).any()) else ''}"
            )
        if weights is not None and weights.requires_grad:
            raise InvalidInput(
                "weights: their gradients do not cross an exchange; pass weights.detach()"
            )
        out: list[tuple[Lookups, Tensor, Tensor | None]] = []
        for lane, features in zip(lanes, features_by_lane, strict=True):
            ids: list[Tensor] = []
            of_lane: list[Tensor] = []
            factors: list[Tensor] = []
            ends = {place: 0 for place in lane.places}
            for f in features:
                at = place_of[f.feature.name] * size
                begin, end = int(offsets[at]), int(offsets[at + size])
                self._check_ids(f.feature, values[begin:end])
                ids.append(values[begin:end])
                of_lane.append(lengths[at : at + size])
                ends[f.place] += end - begin
                if weights is not None:
                    factors.append(weights[begin:end])
                    if f.feature.pooling == "mean":
                        raise InvalidInput(
                            f"weights are defined for sums only, {f.feature.name!r} is a mean"
                        )
            bags = torch.zeros(len(features) * size + 1, dtype=torch.int64)
            torch.cumsum(torch.cat(of_lane), 0, out=bags[1:])
            by_table = [0, *accumulate(ends.values())]
            paddings = [self.paddings[self.tables[place]] for place in lane.places]
            lookups = Lookups(torch.cat(ids), by_table, paddings)
            out.append((lookups, bags, torch.cat(factors) if weights is not None else None))
        return out

    def _places(self, batch: RaggedBatch) -> dict[str, int]:
        place_of = {name: place for place, name in enumerate(batch.features)}
        names = {feature.name for feature in self.features}
        if names != set(place_of):
            raise InvalidInput(
                f"the batch must have the features of the collection: it lacks {sorted(names - set(place_of))}, and "
                f"nobody declared {sorted(set(place_of) - names)}"
            )
        return place_of

    def _check_ids(self, feature: Feature, ids: Tensor) -> None:
        """What an owner would refuse, where others learn of it before they wait."""
        rows = feature.table.num_rows
        if rows is None or len(ids) == 0:
            return
        wrong = (ids < 0) | (ids >= rows)
        if feature.padding_idx is not None:
            wrong &= ids != feature.padding_idx
        if bool(wrong.any()):
            raise InvalidInput(
                f"ids of {feature.name!r} must be within 0..{rows} of table {feature.table.name!r}, "
                f"got {int(ids[wrong][0])}"
            )


class _Rows(torch.autograd.Function):
    """Rows of owners to pooled vectors of those who asked; gradients go the same way back, in one exchange."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor | None, call: Any, *rows: Tensor) -> Tensor:
        exchange, sent, owned, bags = ctx.call = call
        wires = exchange.send_rows([flat.detach() for flat in rows], sent, owned)
        out = torch.empty(bags[0].count, bags[0].width)
        for wire, of_lane in zip(wires, bags, strict=True):
            recover(wire, of_lane, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        exchange, sent, owned, bags = ctx.call
        gradient = gradient.contiguous()
        wires = [recover_backward(gradient, of_lane) for of_lane in bags]
        return None, None, *exchange.send_gradients(wires, sent, owned)


_anchor = torch.empty(0, requires_grad=True)
"""Makes autograd record an exchange on a rank that is asked for nothing as well: others wait for its gradients."""


def _rows_of(table: Table, ids: Tensor, training: bool) -> Tensor:
    rows = lookup(
        [table],
        ids,
        torch.arange(len(ids) + 1),
        None,
        features=[0],
        means=[False],
        paddings=[None],
        bags=len(ids),
        training=training,
    )
    return rows.view(-1)


def _category(name: str) -> int:
    """A table's number for the hash of owners: of its name, so that it outlives the order of tables."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _described(table: Table) -> dict[str, Any]:
    return {
        "dim": table.dim,
        "dtype": table.dtype,
        "optimizer": optimizer_to_dict(table.optimizer),
        "initializer": table.core.initializer,
        "num_rows": table.num_rows,
        "staleness_bound": table.staleness_bound,
        "eviction": table.core.eviction,
        "admission": table.core.admission,
    }
