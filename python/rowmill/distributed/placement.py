"""Placements: which rank keeps the rows of a table, and whether rows or pooled vectors are sent.

| placement | TorchRec | rows are kept by | sent to the rank that looks up |
|---|---|---|---|
| `rows` | row-wise (RW) | the rank that a hash of table and id selects | distinct rows, pooled where they arrive |
| `pooled` | row-wise (RW) | as `rows` | one partial sum per bag and rank |
| `whole` | table-wise (TW) | one rank | one pooled vector per bag |
| `replicated` | data-parallel (DP) | every rank | nothing; in training, ids and gradients go to every rank |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.store.tables import Table

PlacementKind = Literal["rows", "pooled", "whole", "replicated"]

PLACEMENTS: tuple[PlacementKind, ...] = get_args(PlacementKind)

PlacementSetting = str | Mapping[str, str]
"""Placements as a user writes them: by table name, or as text such as "pooled" or "rows,user=whole:1"."""

AUTO = "auto"
"""Stands for a placement that is planned from the first batches."""

_FORMS = "auto, rows, pooled, whole, whole:RANK or replicated"


@dataclass(frozen=True)
class Placement:
    """The placement of one table.

    Attributes:
        kind: One of `PLACEMENTS`.
        rank: The rank that keeps a `whole` table, else None.
    """

    kind: PlacementKind = "rows"
    rank: int | None = None

    def __str__(self) -> str:
        return self.kind if self.rank is None else f"{self.kind}:{self.rank}"

    @property
    def pools(self) -> bool:
        """Whether ranks that keep rows pool them and send vectors instead of rows."""
        return self.kind in ("pooled", "whole")

    @property
    def keeps(self) -> tuple[str, int | None]:
        """Which ranks keep the rows: equal for placements between which no row moves."""
        return ("rows" if self.kind == "pooled" else self.kind), self.rank


def placements(
    setting: PlacementSetting | None,
    tables: Sequence[str],
    ranks: int,
    known: Mapping[str, str] | None = None,
) -> dict[str, Placement]:
    """The placement of every table, without those that are to be planned.

    Args:
        setting: Placements by table name; "" stands for all other tables, which have `auto` without it. Or text: these
            entries as `name=placement` or just `placement`, separated by commas. `auto` is the placement in `known`;
            other tables are to be planned. None: "auto".
        tables: Names of the tables. Those with `whole` and no rank get ranks 0, 1, ... in this order, by turns.
        ranks: Number of ranks.
        known: Placements that tables have in a checkpoint. `whole` without a rank keeps its rank.

    Raises:
        InvalidInput: A placement is invalid, or a table is unknown.

    Examples:
        >>> for name, of in placements(
        ...     "rows,user=whole,item=pooled,tag=auto", ["user", "item", "tag", "shop"], 2
        ... ).items():
        ...     print(name, of)
        user whole:0
        item pooled
        shop rows
    """
    given = _entries(setting)
    unknown = sorted(given.keys() - {"", *tables})
    if unknown:
        raise InvalidInput(
            f"placement names table {unknown[0]!r}, which does not exist: use one of {', '.join(tables)}"
        )
    known = known or {}
    found: dict[str, Placement] = {}
    for name in tables:
        before = placement_in(known[name], ranks) if name in known else None
        text = given.get(name, given.get("", AUTO))
        if text != AUTO:
            found[name] = _placement(name, text, ranks)
            if before and found[name].rank is None and found[name].kind == before.kind:
                found[name] = before
        elif before:
            found[name] = before
    turn = 0
    for name, placement in found.items():
        if placement.kind == "whole" and placement.rank is None:
            found[name] = Placement("whole", turn % ranks)
            turn += 1
    return found


def table_placements(
    tables: Sequence[Table], ranks: int, setting: PlacementSetting | None
) -> dict[Table, Placement]:
    """The placement of every table: as set here, else as set for the checkpoint that opened its store.

    Without those that are to be planned.
    """
    shardings = [table.store.sharding for table in tables]
    if setting is None:
        setting = next((of.setting for of in shardings if of.setting is not None), None)
    known = {
        table.name: of.chosen[table.name]
        for table, of in zip(tables, shardings, strict=True)
        if table.name in of.chosen
    }
    found = placements(setting, [table.name for table in tables], ranks, known)
    for name, text in known.items():
        if found[name].keeps != placement_in(text, ranks).keeps:
            raise InvalidInput(
                f"placement of table {name!r} must be {text!r}, which its checkpoint or another collection has set, got "
                f"{str(found[name])!r}: leave it out here, or pass it to Checkpoint.open, which moves rows"
            )
    return {table: found[table.name] for table in tables if table.name in found}


def placement_in(text: str, ranks: int) -> Placement:
    """A placement of a checkpoint, on `ranks` ranks, which may be fewer than those that wrote it."""
    placement = _placement("", text, None)
    return replace(placement, rank=None if placement.rank is None else placement.rank % ranks)


def check_placements(setting: PlacementSetting) -> None:
    """Raise `InvalidInput` if a placement is invalid whatever the tables and the number of ranks."""
    for name, text in _entries(setting).items():
        if text != AUTO:
            _placement(name, text, None)


def _entries(setting: PlacementSetting | None) -> dict[str, str]:
    if setting is None:
        return {}
    if isinstance(setting, Mapping):
        return dict(setting)
    entries: dict[str, str] = {}
    for entry in setting.split(","):
        name, _, text = (part.strip() for part in entry.rpartition("="))
        if name in entries:
            of = f"table {name!r}" if name else "all other tables"
            raise InvalidInput(
                f"placement must have one entry for {of}, got {entries[name]!r} and {text!r}: remove one of them"
            )
        entries[name] = text
    return entries


def _placement(name: str, text: str, ranks: int | None) -> Placement:
    of = f"placement of table {name!r}" if name else "placement"
    kind, colon, rank = str(text).partition(":")
    if kind not in PLACEMENTS or (colon and (kind != "whole" or not rank.isdecimal())):
        raise InvalidInput(f"{of} must be {_FORMS}, got {text!r}")
    if not colon:
        return Placement(kind)
    if ranks is not None and int(rank) >= ranks:
        raise InvalidInput(
            f"{of} must name a rank below {ranks}, the number of ranks, got {text!r}: start more ranks, or name another"
        )
    return Placement(kind, int(rank))
