"""The planner: chooses the placement of every table from what its lookups cost.

A pure function of its arguments: equal arguments give equal plans on all ranks, and nothing is timed. Decision 0034 describes
the choice, and `cost.py` the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill.distributed._exchange.exchange import check_rows_on_wire
from rowmill.distributed.cost import Costs, Room, Speeds, TableLoad
from rowmill.distributed.placement import PLACEMENTS, Placement, placements
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from rowmill.distributed._exchange.exchange import RowsOnWire
    from rowmill.distributed.placement import PlacementKind, PlacementSetting
    from rowmill.distributed.ranks import Ranks
    from rowmill.nn import Feature, RaggedBatch

GAIN_MIN = 0.1
"""A table leaves `rows` only if this share of its time is saved; smaller gains are within the error of the estimate."""


@dataclass(frozen=True)
class Choice:
    """The placement of one table.

    Attributes:
        table: The name of the table.
        placement: Its placement.
        reason: Why.
        bytes: Bytes that a rank sends in a step, forward and backward, by placement (mean over ranks).
        seconds: Estimated seconds of a step, by placement, if all tables like it are spread evenly.
    """

    table: str
    placement: Placement
    reason: str
    bytes: Mapping[str, float]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class PlacementPlan:
    """The placements of all tables; `str()` is a table with bytes and times by placement.

    Attributes:
        choices: One per table, in the order of the tables.
        seconds: Estimated seconds that the slowest rank sends, receives and pools in a step.
    """

    choices: tuple[Choice, ...]
    seconds: float

    @property
    def placement(self) -> dict[str, str]:
        """Placements by table name, for `ShardedCollection(placement=)`."""
        return {choice.table: str(choice.placement) for choice in self.choices}

    def __str__(self) -> str:
        lines = [
            ("table", "placement", *(f"{kind}: bytes, ms" for kind in PLACEMENTS), "reason"),
            *(
                (
                    choice.table,
                    str(choice.placement),
                    *(
                        f"{choice.bytes[kind]:,.0f}, {choice.seconds[kind] * 1e3:.2f}"
                        for kind in PLACEMENTS
                    ),
                    choice.reason,
                )
                for choice in self.choices
            ),
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        rows = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([*rows, f"estimated exchange: {self.seconds * 1e3:.2f} ms per step"])


def table_loads(
    features: Iterable[Feature], batches: Iterable[RaggedBatch], *, rows_only: Collection[str] = ()
) -> list[TableLoad]:
    """Mean loads per step of the tables of some features, from the batches that one rank looks up first.

    The disk of rows is known for tables with `num_rows`. Their index has the same size on every rank, whatever the placement.

    Args:
        features: As for `ShardedCollection`.
        batches: Some batches of one rank; a handful suffices.
        rows_only: Names of tables that must stay `rows`, because weights of their ids get gradients; all are, if the weights
            of a batch require gradients.
    """
    by_table: dict[str, list[Feature]] = {}
    for feature in features:
        by_table.setdefault(feature.table.name, []).append(feature)
    seen = list(batches)
    if not seen:
        raise InvalidInput("a plan needs at least one batch: pass the first batches of a rank")
    sums = {name: [0, 0, 0] for name in by_table}
    for batch in seen:
        place_of = {name: place for place, name in enumerate(batch.features)}
        size, offsets = batch.batch_size, batch.offsets.cpu()
        for name, of in by_table.items():
            parts: list[torch.Tensor] = []
            for feature in of:
                if feature.name not in place_of:
                    raise InvalidInput(
                        f"batch lacks feature {feature.name!r} of table {name!r}: pass batches with all features"
                    )
                first = place_of[feature.name] * size
                ids = batch.values[offsets[first] : offsets[first + size]]
                parts.append(
                    ids if feature.padding_idx is None else ids[ids != feature.padding_idx]
                )
            ids = torch.cat(parts)
            for at, count in enumerate(
                (len(of) * size, len(ids), len(np.unique(ids.cpu().numpy())))
            ):
                sums[name][at] += count
    weighted = any(of.weights is not None and of.weights.requires_grad for of in seen)
    loads: list[TableLoad] = []
    for name, of in by_table.items():
        table = of[0].table
        bags, ids, distinct = (total / len(seen) for total in sums[name])
        loads.append(
            TableLoad(
                name,
                table.dim,
                bags,
                ids,
                distinct,
                rows=table.num_rows,
                row_bytes=table.core.row_bytes,
                rows_only=weighted or name in rows_only,
                moves=not table.store.read_only,
            )
        )
    return loads


def plan_of_ranks(
    features: Iterable[Feature],
    batches: Iterable[RaggedBatch],
    *,
    ranks: Ranks,
    fixed: PlacementSetting | None = None,
    room: Room | None = None,
    speeds: Speeds | None = None,
    rows_on_wire: RowsOnWire = "fp32",
    rows_only: Collection[str] = (),
) -> PlacementPlan:
    """The plan of all ranks, equal on every rank: a collective, from the mean of their loads and the room of each.

    Args:
        features: As for `ShardedCollection`.
        batches: The first batches of this rank; they are not trained on.
        ranks: The participating ranks.
        fixed: As for `plan_placements`.
        room: Memory and disk of this rank; None: not limited.
        speeds: Speeds of links and cores; None: defaults.
        rows_on_wire: As for `ShardedCollection`.
        rows_only: As for `table_loads`.

    Raises:
        InvalidInput: On every rank, if an argument is invalid on one rank, ranks differ in settings or tables, or tables
            exceed the memory or disk of a rank, which is named.
    """

    def look() -> tuple[list[TableLoad], dict[str, Any]]:
        loads = table_loads(features, batches, rows_only=rows_only)
        settings = {
            "the fixed placements": fixed,
            "the speeds": speeds,
            "the rows on the wire": rows_on_wire,
            "the tables": [
                (load.name, load.dim, load.rows, load.row_bytes, load.moves) for load in loads
            ],
        }
        return loads, settings

    loads = ranks.agree(look, "the plan of placements")
    said = ranks.gather((loads, room or Room()))
    means = mean_loads([loads for loads, _ in said])
    rooms = [room for _, room in said]
    return plan_placements(
        means, ranks.count, fixed=fixed, rooms=rooms, speeds=speeds, rows_on_wire=rows_on_wire
    )


def mean_loads(of_ranks: Sequence[Sequence[TableLoad]]) -> list[TableLoad]:
    """The mean load of every table over ranks. A table is `rows_only` if it is on one rank."""
    count = len(of_ranks)
    return [
        replace(
            of[0],
            bags=sum(load.bags for load in of) / count,
            ids=sum(load.ids for load in of) / count,
            distinct=sum(load.distinct for load in of) / count,
            rows_only=any(load.rows_only for load in of),
        )
        for of in zip(*of_ranks, strict=True)
    ]


def plan_placements(
    loads: Sequence[TableLoad],
    ranks: int,
    *,
    fixed: PlacementSetting | None = None,
    rooms: Sequence[Room] | None = None,
    speeds: Speeds | None = None,
    rows_on_wire: RowsOnWire = "fp32",
) -> PlacementPlan:
    """Choose the placement of every table so that the slowest rank sends, receives and pools as little as possible.

    Tables that gain from `whole` are assigned by longest processing time first, each to the rank with the shortest step.
    A table that would lengthen the step returns to `pooled` or `rows`. `replicated` is never chosen, only fixed.

    Args:
        loads: The load of every table.
        ranks: Number of ranks, N.
        fixed: Placements that are not chosen, as for `ShardedCollection`.
        rooms: Memory and disk of every rank; None: not limited.
        speeds: Speeds of links and cores; None: defaults.
        rows_on_wire: As for `ShardedCollection`.

    Raises:
        InvalidInput: An argument is invalid, or tables exceed the memory or disk of a rank, which is named.
    """
    if ranks < 1:
        raise InvalidInput(f"ranks must be >= 1, got {ranks}")
    rooms = [Room()] * ranks if rooms is None else rooms
    if len(rooms) != ranks:
        raise InvalidInput(f"rooms must have one entry per rank ({ranks}), got {len(rooms)}")
    check_rows_on_wire(rows_on_wire)
    names = [load.name for load in loads]
    if len(set(names)) != len(names):
        raise InvalidInput(f"tables must have distinct names, got {names}")
    costs = Costs(ranks, rooms, speeds or Speeds(), rows_on_wire)
    return _Planner(loads, costs).plan(placements(fixed, names, ranks))


class _Planner:
    """Places tables one by one."""

    def __init__(self, loads: Sequence[TableLoad], costs: Costs) -> None:
        self._loads = loads
        self._costs = costs

    def plan(self, fixed: Mapping[str, Placement]) -> PlacementPlan:
        placed: dict[str, Placement] = {}
        reasons: dict[str, str] = {}
        wanting: list[TableLoad] = []
        base: dict[str, Placement] = {}
        for load in self._loads:
            if load.name in fixed:
                placed[load.name], reasons[load.name] = fixed[load.name], "fixed by hand"
            else:
                kind, reasons[load.name], wants_whole = self._best(load)
                base[load.name] = placed[load.name] = Placement(kind)
                if wants_whole:
                    wanting.append(load)
            self._costs.add(load, placed[load.name])
        self._costs.check_room(placed)
        before = self._costs.step_s()
        wanting.sort(key=lambda load: (-self._costs.alone_s(load, "whole"), load.name))
        for load in wanting:
            self._costs.add(load, base[load.name], -1)
            found = [
                (self._costs.after(load, Placement("whole", rank)), rank)
                for rank in range(self._costs.ranks)
                if self._costs.fits(load, rank)
            ]
            if found:
                placed[load.name] = Placement("whole", min(found)[1])
                reasons[load.name] = "pooled on one rank it takes least time"
            else:
                reasons[load.name] = "no rank has memory and disk for the whole table"
            self._costs.add(load, placed[load.name])
        self._return(wanting, base, placed, reasons)
        if self._costs.step_s() > before:
            # Assigning by turns need not find a shorter step.
            for load in (load for load in wanting if placed[load.name].kind == "whole"):
                self._move(load, base, placed, reasons)
        return PlacementPlan(
            tuple(
                Choice(
                    load.name,
                    placed[load.name],
                    reasons[load.name],
                    {kind: self._costs.bytes_of(load, kind) for kind in PLACEMENTS},
                    {kind: self._costs.alone_s(load, kind) for kind in PLACEMENTS},
                )
                for load in self._loads
            ),
            self._costs.step_s(),
        )

    def _best(self, load: TableLoad) -> tuple[PlacementKind, str, bool]:
        """The best placement on all ranks, the reason, and whether `whole` would be better."""
        if load.rows_only:
            return "rows", "weights of its ids get gradients", False
        if self._costs.ranks == 1:
            return "rows", "one rank sends nothing", False
        enough = (1 - GAIN_MIN) * self._costs.alone_s(load, "rows")
        pooled, whole = (self._costs.alone_s(load, kind) for kind in ("pooled", "whole"))
        kind = "pooled" if pooled < enough else "rows"
        reason = (
            "pooled vectors take less time than rows"
            if kind == "pooled"
            else "pooled vectors would save less than a tenth of the time"
        )
        wants = whole < enough and whole <= pooled and load.moves
        if wants and load.rows is None and any(map(_is_limited, self._costs.rooms)):
            return kind, reason + "; its number of rows is not known, so it cannot be whole", False
        return kind, reason, wants

    def _return(
        self,
        wanting: list[TableLoad],
        base: Mapping[str, Placement],
        placed: dict[str, Placement],
        reasons: dict[str, str],
    ) -> None:
        """Give back whole tables that lengthen the step, the one that costs most first."""
        for _ in wanting:
            whole = [load for load in wanting if placed[load.name].kind == "whole"]
            now = self._costs.step_s()
            gains: list[tuple[float, str, TableLoad]] = []
            for load in whole:
                self._costs.add(load, placed[load.name], -1)
                after = self._costs.after(load, base[load.name])
                # Every rank keeps a share of the rows then, so each must have room for it.
                fits = all(
                    self._costs.fits(load, rank, 1 / self._costs.ranks)
                    for rank in range(self._costs.ranks)
                )
                self._costs.add(load, placed[load.name])
                if fits and after < now * (1 - 1e-9):
                    gains.append((after, load.name, load))
            if not gains:
                return
            self._move(min(gains, key=lambda gain: gain[:2])[2], base, placed, reasons)

    def _move(
        self,
        load: TableLoad,
        base: Mapping[str, Placement],
        placed: dict[str, Placement],
        reasons: dict[str, str],
    ) -> None:
        """Give back a whole table."""
        self._costs.add(load, placed[load.name], -1)
        placed[load.name] = base[load.name]
        reasons[load.name] = "a rank with the whole table would bound the step"
        self._costs.add(load, placed[load.name])


def _is_limited(room: Room) -> bool:
    return room.index_bytes is not None or room.disk_bytes is not None
