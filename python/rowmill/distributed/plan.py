"""The planner: chooses the placement of every table from what its lookups cost.

A pure function of its arguments: equal arguments give equal plans on all ranks, and nothing is timed. The bytes are those
of decision 0031; decision 0034 describes the choice.

Symbols: N ranks, b samples per rank and step, D the dim of a table, L its ids per sample.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rowmill.distributed.placement import Placement, placements
from rowmill.errors import InvalidInput
from rowmill.size import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from rowmill.distributed.placement import PlacementKind, PlacementSetting
    from rowmill.distributed.ranks import Ranks
    from rowmill.nn import Feature, RaggedBatch

ID_BYTES = 8
WEIGHT_BYTES = 4
GAIN_MIN = 0.1
"""A table leaves `rows` only if this share of its time is saved; smaller gains are within the error of the estimate."""
_KINDS: tuple[PlacementKind, ...] = ("rows", "pooled", "whole")


@dataclass(frozen=True)
class TableLoad:
    """What one rank looks up of a table in one step.

    Attributes:
        name: The name of the table.
        dim: Its dim, D.
        bags: Bags: its features times b.
        ids: Ids in these bags, with repetitions: L b.
        distinct: Distinct ids among them.
        rows: Number of rows of the table; None: not known.
        row_bytes: Bytes of a row on disk, with its optimizer state.
        index_bytes: Bytes of index memory per row.
        rows_only: Whether the table must stay `rows`, because weights of its ids get gradients.
        moves: Whether its rows may move to another rank; False for tables of read-only stores.
    """

    name: str
    dim: int
    bags: float
    ids: float
    distinct: float
    rows: int | None = None
    row_bytes: int = 0
    index_bytes: int = 0
    rows_only: bool = False
    moves: bool = True

    def __post_init__(self) -> None:
        if self.dim < 1 or self.bags < 0 or not 0 <= self.distinct <= self.ids:
            raise InvalidInput(
                f"load of table {self.name!r} must have dim >= 1, bags >= 0 and 0 <= distinct <= ids, got dim "
                f"{self.dim}, bags {self.bags:g}, distinct {self.distinct:g}, ids {self.ids:g}"
            )


@dataclass(frozen=True)
class Room:
    """What tables may take on one rank; None: not limited.

    Attributes:
        index_bytes: Memory for indexes.
        disk_bytes: Disk for rows.
    """

    index_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True)
class Speeds:
    """Speeds of links and cores. The defaults are a link of 1 Gbit/s and one core of a server.

    Attributes:
        link_bytes_per_s: Bytes per second that a rank sends, and at the same time receives.
        weight_bytes_per_s: Bytes of weights per second that a rank reads and pools.
    """

    link_bytes_per_s: float = 125e6
    weight_bytes_per_s: float = 2e9

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "weight_bytes_per_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InvalidInput(f"{name} must be a number > 0, got {value!r}")


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
            ("table", "placement", *(f"{kind}: bytes, ms" for kind in _KINDS), "reason"),
            *(
                (
                    choice.table,
                    str(choice.placement),
                    *(
                        f"{choice.bytes[kind]:,.0f}, {choice.seconds[kind] * 1e3:.2f}"
                        for kind in _KINDS
                    ),
                    choice.reason,
                )
                for choice in self.choices
            ),
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
        rows = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([*rows, f"estimated exchange: {self.seconds * 1e3:.2f} ms per step"])


def bytes_one_way(
    load: TableLoad, kind: PlacementKind, ranks: int, *, weight_bytes: int = WEIGHT_BYTES
) -> tuple[float, float]:
    """Bytes of ids, and of rows or vectors, that a rank sends in a forward: the mean over ranks, without lengths of bags.

    Examples:
        >>> small = TableLoad("clicks", dim=64, bags=1024, ids=51_200, distinct=6000)
        >>> bytes_one_way(small, "whole", 2), bytes_one_way(small, "rows", 2)
        ((204800.0, 131072.0), (24000.0, 768000.0))
    """
    others = ranks - 1
    spread = others / ranks
    vector = weight_bytes * load.dim
    if kind == "rows":
        return ID_BYTES * load.distinct * spread, vector * load.distinct * spread
    if kind == "pooled":
        return ID_BYTES * load.ids * spread, vector * load.bags * others
    if kind == "whole":
        return ID_BYTES * load.ids * spread, vector * load.bags * spread
    return ID_BYTES * load.distinct * others, 0.0


def table_loads(
    features: Iterable[Feature], batches: Iterable[RaggedBatch], *, rows_only: Collection[str] = ()
) -> list[TableLoad]:
    """Mean loads per step of the tables of some features, from the batches that one rank looks up first.

    The disk of rows is known for tables with `num_rows`. Their index has the same size on every rank, whatever the placement.

    Args:
        features: As for `ShardedCollection`.
        batches: Some batches of one rank; a handful suffices.
        rows_only: Names of tables that must stay `rows`, because weights of their ids get gradients.
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
                rows_only=name in rows_only,
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
            "the tables": [
                (load.name, load.dim, load.rows, load.row_bytes, load.rows_only, load.moves)
                for load in loads
            ],
        }
        return loads, settings

    loads = ranks.agree(look, "the plan of placements")
    said = ranks.gather((loads, room or Room()))
    means = [
        replace(
            of[0],
            bags=sum(load.bags for load in of) / ranks.count,
            ids=sum(load.ids for load in of) / ranks.count,
            distinct=sum(load.distinct for load in of) / ranks.count,
        )
        for of in zip(*(loads for loads, _ in said), strict=True)
    ]
    rooms = [room for _, room in said]
    return plan_placements(means, ranks.count, fixed=fixed, rooms=rooms, speeds=speeds)


def plan_placements(
    loads: Sequence[TableLoad],
    ranks: int,
    *,
    fixed: PlacementSetting | None = None,
    rooms: Sequence[Room] | None = None,
    speeds: Speeds | None = None,
) -> PlacementPlan:
    """Choose the placement of every table so that the slowest rank sends, receives and pools as little as possible.

    Tables that gain from `whole` are assigned by longest processing time first, each to the rank with the shortest step.
    A table that would lengthen the step returns to `pooled` or `rows`. `replicated` is never chosen, only fixed.

    Args:
        loads: The load of every table.
        ranks: Number of ranks, N.
        fixed: Placements that are not chosen, as for `ShardedCollection`; without an entry for all other tables.
        rooms: Memory and disk of every rank; None: not limited.
        speeds: Speeds of links and cores; None: defaults.

    Raises:
        InvalidInput: An argument is invalid, or tables exceed the memory or disk of a rank, which is named.
    """
    if ranks < 1:
        raise InvalidInput(f"ranks must be >= 1, got {ranks}")
    rooms = [Room()] * ranks if rooms is None else rooms
    if len(rooms) != ranks:
        raise InvalidInput(f"rooms must have one entry per rank ({ranks}), got {len(rooms)}")
    names = [load.name for load in loads]
    if len(set(names)) != len(names):
        raise InvalidInput(f"tables must have distinct names, got {names}")
    return _Planner(loads, ranks, rooms, speeds or Speeds()).plan(_fixed(fixed, names, ranks))


def _fixed(setting: PlacementSetting | None, names: list[str], ranks: int) -> dict[str, Placement]:
    if setting is None:
        return {}
    if isinstance(setting, str):
        given = {entry.rpartition("=")[0].strip() for entry in setting.split(",")}
    else:
        given = set(setting)
    found = placements(setting, names, ranks)
    return found if "" in given else {name: of for name, of in found.items() if name in given}


class _Planner:
    """Loads of all ranks while tables are placed: per leg (ids, vectors, gradients) bytes sent and received, and work."""

    def __init__(
        self, loads: Sequence[TableLoad], ranks: int, rooms: Sequence[Room], speeds: Speeds
    ) -> None:
        self._loads = loads
        self._ranks = ranks
        self._rooms = rooms
        self._speeds = speeds
        self._costs = [[0.0] * ranks for _ in range(7)]
        self._index = [0.0] * ranks
        self._disk = [0.0] * ranks

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
            self._add(load, placed[load.name])
        self._check_room(placed)
        before = self._step()
        wanting.sort(key=lambda load: (-self._alone(load, "whole"), load.name))
        for load in wanting:
            self._add(load, base[load.name], -1)
            found = [
                (self._after(load, Placement("whole", rank)), rank)
                for rank in range(self._ranks)
                if self._fits(load, rank)
            ]
            if found:
                placed[load.name] = Placement("whole", min(found)[1])
                reasons[load.name] = "vectors are fewer bytes than rows"
            else:
                reasons[load.name] = "no rank has memory and disk for the whole table"
            self._add(load, placed[load.name])
        self._return(wanting, base, placed, reasons)
        if self._step() > before:
            # Assigning by turns need not find a shorter step.
            for load in (load for load in wanting if placed[load.name].kind == "whole"):
                self._move(load, base, placed, reasons)
        return PlacementPlan(
            tuple(
                Choice(
                    load.name,
                    placed[load.name],
                    reasons[load.name],
                    {kind: self._bytes(load, kind) for kind in _KINDS},
                    {kind: self._alone(load, kind) for kind in _KINDS},
                )
                for load in self._loads
            ),
            self._step(),
        )

    def _best(self, load: TableLoad) -> tuple[PlacementKind, str, bool]:
        """The best placement on all ranks, the reason, and whether `whole` would be better."""
        if load.rows_only:
            return "rows", "weights of its ids get gradients", False
        if self._ranks == 1:
            return "rows", "one rank sends nothing", False
        enough = (1 - GAIN_MIN) * self._alone(load, "rows")
        pooled, whole = (self._alone(load, kind) for kind in ("pooled", "whole"))
        kind = "pooled" if pooled < enough else "rows"
        reason = (
            "vectors are fewer bytes than rows"
            if kind == "pooled"
            else "distinct rows are fewer bytes than ids and vectors"
        )
        wants = whole < enough and whole <= pooled and load.moves
        if wants and load.rows is None and any(map(_is_limited, self._rooms)):
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
            now = self._step()
            gains: list[tuple[float, str, TableLoad]] = []
            for load in whole:
                self._add(load, placed[load.name], -1)
                after = self._after(load, base[load.name])
                # Every rank keeps a share of the rows then, so each must have room for it.
                fits = all(self._fits(load, rank, 1 / self._ranks) for rank in range(self._ranks))
                self._add(load, placed[load.name])
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
        self._add(load, placed[load.name], -1)
        placed[load.name] = base[load.name]
        reasons[load.name] = "a rank with the whole table would bound the step"
        self._add(load, placed[load.name])

    def _cost(self, load: TableLoad, placement: Placement, rank: int) -> tuple[float, ...]:
        """Bytes sent and received per leg, and bytes of weights read and pooled, of one rank."""
        n, vector = self._ranks, WEIGHT_BYTES * load.dim
        if placement.kind == "replicated":
            ids = ID_BYTES * load.distinct * (n - 1)
            gradients = vector * load.distinct * (n - 1)
            work = vector * (load.ids + n * load.distinct) * 2
            return ids, ids, 0.0, 0.0, gradients, gradients, work
        if placement.kind != "whole":
            ids, vectors = bytes_one_way(load, placement.kind, n)
            adds = load.distinct if placement.kind == "rows" else n * load.bags
            return ids, ids, vectors, vectors, vectors, vectors, vector * (load.ids + adds) * 2
        ids, vectors = ID_BYTES * load.ids, vector * load.bags
        if rank != placement.rank:
            return ids, 0.0, 0.0, vectors, vectors, 0.0, vectors * 2
        others = n - 1
        work = vector * (n * load.ids + load.bags) * 2
        return 0.0, ids * others, vectors * others, 0.0, 0.0, vectors * others, work

    def _bytes(self, load: TableLoad, kind: PlacementKind) -> float:
        ids, vectors = bytes_one_way(load, kind, self._ranks)
        return ids + 2 * vectors

    def _alone(self, load: TableLoad, kind: PlacementKind) -> float:
        """Seconds of a table if tables like it are spread evenly over ranks."""
        vector = WEIGHT_BYTES * load.dim
        adds = {"rows": load.distinct, "pooled": self._ranks * load.bags, "whole": load.bags}
        work = vector * (load.ids + adds[kind]) * 2
        return (
            self._bytes(load, kind) / self._speeds.link_bytes_per_s
            + work / self._speeds.weight_bytes_per_s
        )

    def _add(self, load: TableLoad, placement: Placement, sign: int = 1) -> None:
        for rank in range(self._ranks):
            for at, cost in enumerate(self._cost(load, placement, rank)):
                self._costs[at][rank] += sign * cost
            share = _share(placement, rank, self._ranks)
            self._index[rank] += sign * share * (load.rows or 0) * load.index_bytes
            self._disk[rank] += sign * share * (load.rows or 0) * load.row_bytes

    def _after(self, load: TableLoad, placement: Placement) -> float:
        self._add(load, placement)
        seconds = self._step()
        self._add(load, placement, -1)
        return seconds

    def _step(self) -> float:
        """Seconds of a step: each leg ends when its slowest rank has sent and received."""
        legs = sum(
            max(max(self._costs[at]), max(self._costs[at + 1])) / self._speeds.link_bytes_per_s
            for at in (0, 2, 4)
        )
        return legs + max(self._costs[6]) / self._speeds.weight_bytes_per_s

    def _fits(self, load: TableLoad, rank: int, share: float = 1.0) -> bool:
        room, rows = self._rooms[rank], share * (load.rows or 0)
        index = self._index[rank] + rows * load.index_bytes
        disk = self._disk[rank] + rows * load.row_bytes
        return (room.index_bytes is None or index <= room.index_bytes) and (
            room.disk_bytes is None or disk <= room.disk_bytes
        )

    def _check_room(self, placed: Mapping[str, Placement]) -> None:
        for rank, room in enumerate(self._rooms):
            for what, need, there in (
                ("memory for indexes", self._index[rank], room.index_bytes),
                ("disk", self._disk[rank], room.disk_bytes),
            ):
                if there is None or need <= there:
                    continue
                whole = [name for name, of in placed.items() if of == Placement("whole", rank)]
                of = f" with {', '.join(whole)} whole on it" if whole else ""
                raise InvalidInput(
                    f"rank {rank} has {format_size(there)} of {what}, but its tables take "
                    f"{format_size(round(need))}{of}: give it more, start more ranks, or choose another placement"
                )


def _is_limited(room: Room) -> bool:
    return room.index_bytes is not None or room.disk_bytes is not None


def _share(placement: Placement, rank: int, ranks: int) -> float:
    if placement.kind == "replicated":
        return 1.0
    return float(placement.rank == rank) if placement.kind == "whole" else 1 / ranks
