"""The plan of a collection: its features, its tables in the order of lanes, and the split of a batch by lanes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rowmill.distributed._exchange.category import category_of
from rowmill.distributed._exchange.pooled import BagRequest
from rowmill.distributed._exchange.requests import Lookups
from rowmill.distributed.placement import AUTO, Placement, table_placements
from rowmill.distributed.strategy import Lane, PooledCategory, Strategy, lanes
from rowmill.errors import InvalidInput
from rowmill.ops.exchange import RecoveredFeature, Unique, segment_unique
from rowmill.optim.specs import optimizer_to_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.distributed.placement import PlacementSetting
    from rowmill.nn import Feature
    from rowmill.nn.ragged import RaggedBatch
    from rowmill.store.tables import Table


class Scale(NamedTuple):
    """A factor per sample for the columns of one feature."""

    column: int
    dim: int
    factors: Tensor

    def apply(self, pooled: Tensor) -> None:
        """Multiply these columns of `pooled` [B, width] in place."""
        pooled[:, self.column : self.column + self.dim] *= self.factors[:, None].to(pooled)


@dataclass(frozen=True, eq=False)
class Asked:
    """The lookups of a batch in one lane.

    Attributes:
        lookups: The ids of tables whose distinct rows are requested.
        bags: The bags of the other tables, or None if the lane has none. They follow in the order of features, and look up
            vectors in place of ids.
        offsets: int64 [F * B + 1], offsets of bags in the ids and vectors; bag b of feature f has index f * B + b.
        weights: float32, one weight per id or vector, or None. It receives gradients.
    """

    lookups: Lookups
    bags: BagRequest | None
    offsets: Tensor
    weights: Tensor | None


@dataclass(eq=False)
class LookedUp:
    """A batch before its ids are sent.

    Attributes:
        asked: Its lookups in every lane; or the error because of which it cannot be looked up.
        count: Number of samples.
        device: Device of its ids and of the pooled vectors.
        scales: For features whose means are taken of vectors: first column, dim, and float32 [B], 1 / ids of each bag.
    """

    asked: list[Asked] | Exception
    count: int
    device: torch.device
    scales: list[Scale] = field(default_factory=list[Scale])

    @cached_property
    def unique(self) -> list[Unique]:
        """Its distinct ids per lane; empty if the batch is invalid."""
        if isinstance(self.asked, Exception):
            return []
        lookups = [one.lookups for one in self.asked]
        return [segment_unique(of.ids, of.offsets, of.paddings) for of in lookups]

    @cached_property
    def distinct(self) -> tuple[Tensor, ...]:
        """Its distinct ids per category."""
        return tuple(ids for one in self.unique for ids in one.by_category())


class Placed:
    """A feature, the position of its table in the plan, and its first column in the output."""

    def __init__(self, feature: Feature, place: int, column: int, placement: Placement) -> None:
        self.feature = feature
        self.place = place
        self.column = column
        self.placement = placement
        self.mean = feature.pooling == "mean"
        # The mean of vectors is a scaled sum, because no vector knows the ids of the others.
        recovered_mean = self.mean and not placement.pools
        self.recovered = RecoveredFeature(feature.table.dim, column, recovered_mean)
        """The feature as the exchange's kernels take it."""


class Plan:
    """Tables ordered by placement and group, and the features of each table."""

    def __init__(
        self, features: tuple[Feature, ...], ranks: int, setting: PlacementSetting | None
    ) -> None:
        self.features = features
        self._ranks = ranks
        names = [feature.name for feature in features]
        if not names or len(set(names)) != len(names):
            raise InvalidInput(f"features must have distinct names, got {names}")
        stores = list(dict.fromkeys(feature.table.store for feature in features))
        trained = [store for store in stores if not store.read_only]
        if len(trained) > 1:
            raise InvalidInput(
                f"a collection can train tables of one store only, got {', '.join(map(str, trained))}: open the other "
                "stores with read_only=True"
            )
        self.stores = stores
        self.trained = trained[0] if trained else None
        """The store whose rows are trained."""
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
        if len({table.name for table in tables}) != len(tables):
            raise InvalidInput(
                f"tables of one collection must have distinct names, got {[table.name for table in tables]}"
            )
        placed = table_placements(tables, ranks, setting)
        self.open = [table for table in tables if table not in placed and ranks > 1]
        """Tables whose placement is to be planned, `rows` until then."""
        self.placements = {table: placed.get(table, Placement()) for table in tables}
        for table, placement in self.placements.items():
            if table.store.read_only and placement.kind not in ("rows", "pooled"):
                raise InvalidInput(
                    f'placement of table {table.name!r} must be "rows" or "pooled", got {str(placement)!r}: the store '
                    f"{table.store} is read-only, so its rows stay where they are"
                )
            if placement.kind == "replicated" and (table.core.eviction or table.core.admission):
                raise InvalidInput(
                    f'placement of table {table.name!r} must not be "replicated", because the table has an eviction or '
                    'admission rule: choose another placement, such as "rows", or drop the rule'
                )

        def group(table: Table) -> tuple[int, int, int]:
            """A key that is equal for tables that share a call of the store."""
            placement = self.placements[table]
            order = 2 if placement.pools else int(placement.kind == "replicated")
            return order, id(table.store), table.group

        first_of_group = {group(table): at for at, table in reversed(list(enumerate(tables)))}
        self.tables = sorted(
            tables, key=lambda table: (group(table)[0], first_of_group[group(table)])
        )
        ends = [
            place
            for place, (table, after) in enumerate(pairwise(self.tables), start=1)
            if group(table) != group(after)
        ]
        bounds = [0, *ends, len(self.tables)]
        self.groups = [range(begin, end) for begin, end in pairwise(bounds)]
        """Positions of the tables of each group, which share a call of the store."""
        self.requested = sum(not of.pools for of in self.placements.values())
        """Number of tables whose distinct rows are requested; they precede those whose rows are pooled at their owners."""
        place_of = {table: place for place, table in enumerate(self.tables)}
        columns = [0]
        for feature in features:
            columns.append(columns[-1] + feature.table.dim)
        placed = [
            Placed(feature, place_of[feature.table], column, self.placements[feature.table])
            for feature, column in zip(features, columns[:-1], strict=True)
        ]
        self.by_table = sorted(placed, key=lambda feature: feature.place)

    def lanes(self, strategy: Strategy) -> list[Lane]:
        """The lanes of a strategy."""
        groups = [number for number, places in enumerate(self.groups) for _ in places]
        categories = [category_of(table.name) for table in self.tables]
        pooled = [
            PooledCategory(
                categories[place],
                sum(feature.table is table for feature in self.features),
                self.placements[table].rank,
                self.paddings[table],
            )
            for place, table in enumerate(self.tables)
            if self.placements[table].pools
        ]
        replicated = sum(of.kind == "replicated" for of in self.placements.values())
        dims = [table.dim for table in self.tables]
        return lanes(strategy, groups, categories, dims, pooled, replicated)

    def described(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks, by name."""
        said: dict[str, Any] = {
            f"feature {number}": (f.name, f.table.name, f.pooling, f.padding_idx)
            for number, f in enumerate(self.features)
        }
        for table in self.tables:
            chosen = AUTO if table in self.open else str(self.placements[table])
            said[f"the placement of table {table.name!r}"] = chosen
            for what, value in _described(table).items():
                said[f"the {what} of table {table.name!r}"] = value
        # The order of tables is the order of rows in messages.
        said["the tables in the order of their groups"] = [table.name for table in self.tables]
        return said

    def look_up(
        self,
        batch: RaggedBatch,
        features_by_lane: Sequence[Sequence[Placed]],
        lanes: Sequence[Lane],
    ) -> LookedUp:
        """Split a batch by lanes; raise `InvalidInput` if it does not match the features or ids are out of range."""
        place_of = self._places(batch)
        size, offsets, values = batch.batch_size, batch.offsets.cpu(), batch.values.cpu()
        weights = None if batch.weights is None else batch.weights.cpu()
        lengths = offsets.diff()
        if offsets[0] != 0 or offsets[-1] != len(values) or bool((lengths < 0).any()):
            raise InvalidInput(
                f"offsets must rise from 0 to the number of ids ({len(values)}), got "
                f"{offsets[0]}..{offsets[-1]}{' not ascending' if bool((lengths < 0).any()) else ''}"
            )
        # Split once for all features: slicing a tensor per feature costs more than pooling a bag.
        count = len(place_of)
        begins = offsets[torch.arange(count + 1) * size]
        sizes: list[int] = begins.diff().numpy().tolist()
        ids_of = torch.split(values, sizes)
        weights_of = None if weights is None else torch.split(weights, sizes)
        lengths_of = lengths.view(count, size)
        out: list[Asked] = []
        scales: list[Scale] = []
        for lane, features in zip(lanes, features_by_lane, strict=True):
            places = [place_of[f.feature.name] for f in features]
            for f, place in zip(features, places, strict=True):
                self._check_ids(f.feature, ids_of[place])
                self._check_weights(f, weights)
                if f.mean and f.placement.pools:
                    used = self._used(f.feature, ids_of[place], lengths_of[place])
                    scales.append(
                        Scale(f.recovered.column, f.recovered.dim, used.clamp(min=1).reciprocal())
                    )
            # Bags of requested rows, then bags of vectors.
            rows = sum(not f.placement.pools for f in features)
            vectors = [self._ranks if f.placement.rank is None else 1 for f in features[rows:]]
            looked_up = torch.tensor(vectors, dtype=torch.int64)[:, None].expand(-1, size)
            bags = torch.zeros(len(features) * size + 1, dtype=torch.int64)
            both = torch.cat([lengths_of[places[:rows]].view(-1), looked_up.reshape(-1)])
            torch.cumsum(both, 0, out=bags[1:])
            ends = {place: 0 for place in lane.places}
            for f, place in zip(features[:rows], places[:rows], strict=True):
                ends[f.place] += sizes[place]
            by_table = [0, *accumulate(ends.values())]
            paddings = [self.paddings[self.tables[place]] for place in lane.places]
            ids = torch.cat([values[:0], *(ids_of[place] for place in places[:rows])])
            factors = None
            if weights_of is not None:
                of_vectors = torch.ones(sum(vectors) * size)
                factors = torch.cat([*(weights_of[p] for p in places[:rows]), of_vectors])
            asked = Lookups(ids, by_table, paddings)
            pooled = None
            if lane.pooled:
                pooled = _bags(ids_of, lengths_of, weights_of, places[rows:], size)
            out.append(Asked(asked, pooled, bags, factors))
        return LookedUp(out, size, batch.values.device, scales)

    def _used(self, feature: Feature, ids: Tensor, lengths: Tensor) -> Tensor:
        """float32 [B]: ids of each bag that are not padding."""
        padding = self.paddings[feature.table]
        if padding is None:
            return lengths.float()
        bag_of = torch.arange(len(lengths)).repeat_interleave(lengths)
        return torch.zeros(len(lengths)).index_add(0, bag_of, (ids != padding).float())

    def _check_weights(self, placed: Placed, weights: Tensor | None) -> None:
        if weights is None:
            return
        name = placed.feature.name
        if placed.mean:
            raise InvalidInput(
                f'weights need pooling "sum", but feature {name!r} has "mean": leave the weights out, or use "sum"'
            )
        if weights.requires_grad and placed.placement.pools and torch.is_grad_enabled():
            raise InvalidInput(
                f'weights of ids get gradients only with placement "rows" or "replicated", but table '
                f"{placed.feature.table.name!r} of feature {name!r} has {str(placed.placement)!r}: give this table placement "
                '"rows", or detach() the weights'
            )

    def _places(self, batch: RaggedBatch) -> dict[str, int]:
        place_of = {name: place for place, name in enumerate(batch.features)}
        names = {feature.name for feature in self.features}
        if names != set(place_of):
            raise InvalidInput(
                "the batch must have exactly the features of the collection: it lacks "
                f"{sorted(names - set(place_of))} and has unknown {sorted(set(place_of) - names)}"
            )
        return place_of

    def _check_ids(self, feature: Feature, ids: Tensor) -> None:
        """Raise for ids out of range, before ids are sent, so that every rank learns of the error."""
        rows = feature.table.num_rows
        if rows is None or len(ids) == 0:
            return
        wrong = (ids < 0) | (ids >= rows)
        if feature.padding_idx is not None:
            wrong &= ids != feature.padding_idx
        if bool(wrong.any()):
            raise InvalidInput(
                f"ids of feature {feature.name!r} must be in [0, {rows}), the range of table {feature.table.name!r}, "
                f"got {int(ids[wrong][0])}"
            )


def _bags(
    ids_of: Sequence[Tensor],
    lengths_of: Tensor,
    weights_of: Sequence[Tensor] | None,
    places: Sequence[int],
    size: int,
) -> BagRequest:
    """The bags of these features of a batch."""
    offsets = torch.zeros(len(places) * size + 1, dtype=torch.int64)
    torch.cumsum(lengths_of[places].view(-1), 0, out=offsets[1:])
    weights = None
    if weights_of is not None:
        weights = torch.cat([weights_of[place].detach() for place in places])
    return BagRequest(torch.cat([ids_of[place] for place in places]), offsets, weights, size)


def _described(table: Table) -> dict[str, Any]:
    return {
        # Initial values of rows depend on seed and creation number.
        "seed": table.store.seed,
        "creation number": table.core.category,
        "read-only store": table.store.read_only,
        "dim": table.dim,
        "dtype": table.dtype,
        "optimizer": optimizer_to_dict(table.optimizer),
        "initializer": table.core.initializer,
        "num_rows": table.num_rows,
        "staleness_bound": table.staleness_bound,
        "eviction": table.core.eviction,
        "admission": table.core.admission,
    }
