"""Placement "auto": the placements that a collection's first batches choose, on all ranks together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rowmill.distributed._checkpoint.room import disk_of, shared
from rowmill.distributed.cost import Room
from rowmill.distributed.plan import PlacementPlan, mean_loads, plan_placements, table_loads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rowmill.distributed._exchange.exchange import RowsOnWire
    from rowmill.distributed.cost import Speeds, TableLoad
    from rowmill.distributed.placement import Placement
    from rowmill.distributed.ranks import Ranks
    from rowmill.nn import Feature, RaggedBatch

_SPARE = 1.5
"""Bytes that the log of a store may take per live byte (decision 0009)."""


def rooms_here(loads: Sequence[TableLoad], folder: Path, ranks: int) -> list[Room]:
    """The room of each rank if the stores of all are in this folder, which may not exist yet."""
    return _rooms(loads, shared([disk_of(folder)] * ranks))


def planned(
    features: Sequence[Feature],
    batches: Sequence[RaggedBatch],
    *,
    ranks: Ranks,
    fixed: Mapping[str, Placement],
    speeds: Speeds,
    rows_on_wire: RowsOnWire,
) -> PlacementPlan | None:
    """The plan of all ranks from their first batches, a collective; None if a rank has no batch, or no batch has ids.

    Rows that are there stay where they are, and rows of a store whose placements no checkpoint keeps stay where the owner
    hash puts them: a later run would look for them there.

    Args:
        features: As for `ShardedCollection`.
        batches: Valid batches of this rank.
        ranks: The participating ranks.
        fixed: The placements of tables that are not to be planned.
        speeds: Speeds of links and cores.
        rows_on_wire: As for `ShardedCollection`.

    Raises:
        InvalidInput: On every rank, if a rank lacks disk for the whole tables that are fixed on it.
    """
    tables = {feature.table.name: feature.table for feature in features}
    loads: list[TableLoad] = []
    if batches:
        loads = [
            replace(load, moves=load.moves and tables[load.name].store.sharding.kept)
            for load in table_loads(features, batches)
        ]
    rows = {name: table.core.len() for name, table in tables.items()}
    kept = [table.store for table in tables.values() if table.store.sharding.kept]
    disk = disk_of(Path(kept[0].location)) if kept else None
    said = ranks.gather((loads, rows, disk), "the plan of placements")
    if not all(of for of, _, _ in said):
        return None
    means = [
        replace(load, moves=load.moves and not any(of[load.name] for _, of, _ in said))
        for load in mean_loads([of for of, _, _ in said])
    ]
    if not any(load.ids for load in means):
        return None
    rooms = _rooms(means, shared([disk for _, _, disk in said]))
    setting = {name: str(of) for name, of in fixed.items()}
    return plan_placements(
        means, ranks.count, fixed=setting, rooms=rooms, speeds=speeds, rows_on_wire=rows_on_wire
    )


def _rooms(loads: Sequence[TableLoad], free: Sequence[int | None]) -> list[Room]:
    # A rank needs its share of `rows` in any case, so a disk that is too small for them limits only whole tables.
    least = round(sum((load.rows or 0) * load.row_bytes for load in loads) / len(free))
    return [
        Room() if of is None else Room(disk_bytes=max(round(of / _SPARE), least)) for of in free
    ]
