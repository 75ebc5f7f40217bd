"""The plan of placements of a run on many ranks, before it starts: `rowmill plan`."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import rowmill
from rowmill.distributed import Speeds, mean_loads, plan_placements, table_loads
from rowmill.distributed.auto import rooms_here
from rowmill.distributed.pipeline import PLANNED_BATCHES
from rowmill.distributed.placement import check_placements

if TYPE_CHECKING:
    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.distributed import PlacementPlan

_LOOKUPS = {
    "ctr": "rowmill.ctr.first_lookups:first_lookups",
    "kge": "rowmill.kge.first_lookups:first_lookups",
    "gnn": "rowmill.gnn.first_lookups:first_lookups",
}
"""The function that makes the first lookups of each task, by name: tasks import this package."""


def plan_run(config: Config, console: Console, *, ranks: int) -> PlacementPlan:
    """The plan that a new run with these settings makes on this many ranks, all on this machine.

    Raises:
        InvalidInput: A setting is invalid, or tables exceed the disk of a rank, which is named.
    """
    train = config.train
    # Checked before data is read.
    if train.placement is not None:
        check_placements(train.placement)
    speeds = None if train.speeds is None else Speeds.read(train.speeds)
    with tempfile.TemporaryDirectory() as folder:
        store = rowmill.open(folder, memory=config.store.memory, seed=config.train.seed)
        with closing(store):
            features, of_ranks = resolve_name(_LOOKUPS[train.task])(
                config, store, console, ranks=ranks, count=PLANNED_BATCHES
            )
            loads = mean_loads([table_loads(features, batches) for batches in of_ranks])
    return plan_placements(
        loads,
        ranks,
        fixed=train.placement,
        rooms=rooms_here(loads, config.store.path or train.out, ranks),
        speeds=speeds,
        rows_on_wire=train.rows_on_wire,
    )
