"""How the tables are spread over ranks, for a store that belongs to one of many ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Sharding:
    """The placements of a store's tables; `rowmill.distributed.placement` defines them.

    Attributes:
        setting: Placements as given to `rowmill.distributed.Checkpoint.open`; None: not given.
        chosen: The placement of every table that the checkpoint has or a collection shards, by name. Tables whose placement
            is still to be planned have none.
        kept: Whether checkpoints keep `chosen`.
    """

    setting: str | Mapping[str, str] | None = None
    chosen: dict[str, str] = field(default_factory=dict[str, str])
    kept: bool = False
