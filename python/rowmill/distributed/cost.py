"""What placements cost: loads of tables, room and speeds of ranks, and the bytes and seconds of a step.

The bytes are those of decision 0031; decision 0034 describes the estimate.

Symbols: N ranks, b samples per rank and step, D the dim of a table, L its ids per sample.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rowmill.distributed.placement import Placement
from rowmill.errors import InvalidInput
from rowmill.size import format_size

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from rowmill.distributed._exchange.exchange import RowsOnWire
    from rowmill.distributed.placement import PlacementKind

ID_BYTES = 8
WIRE_BYTES: dict[RowsOnWire, int] = {"fp32": 4, "bf16": 2}
"""Bytes of a weight or gradient in messages."""
_WEIGHT_BYTES = 4
"""Bytes of a weight that is read and pooled, whatever its format in messages."""


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

    Examples:
        >>> print(Speeds(), end="")
        link_bytes_per_s = 125000000.0
        weight_bytes_per_s = 2000000000.0
    """

    link_bytes_per_s: float = 125e6
    weight_bytes_per_s: float = 2e9

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            known = isinstance(value, int | float) and not isinstance(value, bool)
            if not known or not 0 < value < float("inf"):
                raise InvalidInput(f"{field.name} must be a number > 0, got {value!r}")

    def __str__(self) -> str:
        """The content of a file of speeds."""
        return "".join(f"{field.name} = {getattr(self, field.name)!r}\n" for field in fields(self))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Speeds from a TOML file, such as `rowmill plan --probe` writes; a missing one has its default.

        Raises:
            InvalidInput: The file cannot be read, or has another key or an invalid value.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"file of speeds {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"file of speeds {path} is not valid TOML: {error}") from None
        known = [field.name for field in fields(cls)]
        for name in content:
            if name not in known:
                raise InvalidInput(
                    f"file of speeds {path} has the unknown key {name}; known: {', '.join(known)}"
                )
        try:
            return cls(**content)
        except InvalidInput as error:
            raise InvalidInput(f"file of speeds {path}: {error}") from None


def bytes_one_way(
    load: TableLoad, kind: PlacementKind, ranks: int, rows_on_wire: RowsOnWire = "fp32"
) -> tuple[float, float]:
    """Bytes of ids, and of rows or vectors, that a rank sends in a forward: the mean over ranks, without lengths of bags.

    Examples:
        >>> small = TableLoad("clicks", dim=64, bags=1024, ids=51_200, distinct=6000)
        >>> bytes_one_way(small, "whole", 2), bytes_one_way(small, "rows", 2)
        ((204800.0, 131072.0), (24000.0, 768000.0))
        >>> bytes_one_way(small, "whole", 2, "bf16")
        (204800.0, 65536.0)
    """
    others = ranks - 1
    spread = others / ranks
    vector = WIRE_BYTES[rows_on_wire] * load.dim
    if kind == "rows":
        return ID_BYTES * load.distinct * spread, vector * load.distinct * spread
    if kind == "pooled":
        return ID_BYTES * load.ids * spread, vector * load.bags * others
    if kind == "whole":
        return ID_BYTES * load.ids * spread, vector * load.bags * spread
    return ID_BYTES * load.distinct * others, 0.0


def bytes_of_step(
    load: TableLoad, kind: PlacementKind, ranks: int, rows_on_wire: RowsOnWire = "fp32"
) -> float:
    """Bytes that a rank sends in a step, forward and backward: the mean over ranks, without lengths of bags."""
    ids, vectors = bytes_one_way(load, kind, ranks, rows_on_wire)
    if kind == "replicated":
        gradients = WIRE_BYTES[rows_on_wire] * load.dim * load.distinct * (ranks - 1)
        return ids + gradients
    return ids + 2 * vectors


class Costs:
    """What the ranks send, receive and compute in a step, and the room that their tables take, while tables are placed."""

    def __init__(
        self, ranks: int, rooms: Sequence[Room], speeds: Speeds, rows_on_wire: RowsOnWire
    ) -> None:
        self.ranks = ranks
        self.rooms = rooms
        self._speeds = speeds
        self._wire: RowsOnWire = rows_on_wire
        # Per leg (ids, vectors, gradients) bytes sent and received, and bytes of weights read and pooled.
        self._costs = [[0.0] * ranks for _ in range(7)]
        self._index = [0.0] * ranks
        self._disk = [0.0] * ranks

    def add(self, load: TableLoad, placement: Placement, sign: int = 1) -> None:
        """Add a table, or remove it with `sign=-1`."""
        for rank in range(self.ranks):
            for at, cost in enumerate(self._cost(load, placement, rank)):
                self._costs[at][rank] += sign * cost
            share = _share(placement, rank, self.ranks)
            self._index[rank] += sign * share * (load.rows or 0) * load.index_bytes
            self._disk[rank] += sign * share * (load.rows or 0) * load.row_bytes

    def after(self, load: TableLoad, placement: Placement) -> float:
        """Seconds of a step with one more table."""
        self.add(load, placement)
        seconds = self.step_s()
        self.add(load, placement, -1)
        return seconds

    def step_s(self) -> float:
        """Seconds of a step: each leg ends when its slowest rank has sent and received."""
        legs = sum(
            max(max(self._costs[at]), max(self._costs[at + 1])) / self._speeds.link_bytes_per_s
            for at in (0, 2, 4)
        )
        return legs + max(self._costs[6]) / self._speeds.weight_bytes_per_s

    def alone_s(self, load: TableLoad, kind: PlacementKind) -> float:
        """Seconds of a table if tables like it are spread evenly over ranks."""
        adds = {
            "rows": load.distinct,
            "pooled": self.ranks * load.bags,
            "whole": load.bags,
            "replicated": self.ranks * load.distinct,
        }
        work = _WEIGHT_BYTES * load.dim * (load.ids + adds[kind]) * 2
        return (
            self.bytes_of(load, kind) / self._speeds.link_bytes_per_s
            + work / self._speeds.weight_bytes_per_s
        )

    def bytes_of(self, load: TableLoad, kind: PlacementKind) -> float:
        """Bytes that a rank sends for a table in a step: the mean over ranks."""
        return bytes_of_step(load, kind, self.ranks, self._wire)

    def fits(self, load: TableLoad, rank: int, share: float = 1.0) -> bool:
        """Whether a rank has room for a share of the rows of one more table."""
        room, rows = self.rooms[rank], share * (load.rows or 0)
        index = self._index[rank] + rows * load.index_bytes
        disk = self._disk[rank] + rows * load.row_bytes
        return (room.index_bytes is None or index <= room.index_bytes) and (
            room.disk_bytes is None or disk <= room.disk_bytes
        )

    def check_room(self, placed: Mapping[str, Placement]) -> None:
        """Raise `InvalidInput` if the tables of a rank exceed its memory or disk; it names the rank."""
        for rank, room in enumerate(self.rooms):
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

    def _cost(self, load: TableLoad, placement: Placement, rank: int) -> tuple[float, ...]:
        """Bytes sent and received per leg, and bytes of weights read and pooled, of one rank."""
        n, dim = self.ranks, load.dim
        vector, weights = WIRE_BYTES[self._wire] * dim, _WEIGHT_BYTES * dim
        if placement.kind == "replicated":
            ids = ID_BYTES * load.distinct * (n - 1)
            gradients = vector * load.distinct * (n - 1)
            work = weights * (load.ids + n * load.distinct) * 2
            return ids, ids, 0.0, 0.0, gradients, gradients, work
        if placement.kind != "whole":
            ids, vectors = bytes_one_way(load, placement.kind, n, self._wire)
            adds = load.distinct if placement.kind == "rows" else n * load.bags
            return ids, ids, vectors, vectors, vectors, vectors, weights * (load.ids + adds) * 2
        ids, vectors = ID_BYTES * load.ids, vector * load.bags
        if rank != placement.rank:
            return ids, 0.0, 0.0, vectors, vectors, 0.0, weights * load.bags * 2
        others = n - 1
        work = weights * (n * load.ids + load.bags) * 2
        return 0.0, ids * others, vectors * others, 0.0, 0.0, vectors * others, work


def _share(placement: Placement, rank: int, ranks: int) -> float:
    """The share of a table's rows that a rank keeps."""
    if placement.kind == "replicated":
        return 1.0
    return float(placement.rank == rank) if placement.kind == "whole" else 1 / ranks
