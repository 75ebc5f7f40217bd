"""Training on many ranks: tables are sharded over one store per rank, with one exchange of rows per step.

Examples:
    In every process that `torchrun` starts::

        dist.init_process_group("gloo")
        ranks = Ranks()
        store = rowmill.open(f"stores/{ranks.rank}", memory="2GiB")
        tables = [store.table(name, dim=16, optimizer=rowmill.optim.SGD(lr=0.1)) for name in names]
        rows = ShardedCollection([Feature(t.name, t) for t in tables], ranks=ranks)
        model = ranks.data_parallel(MLP())
        for batch, labels in my_part_of_every_batch:
            loss = ranks.mean(loss_of_each(model(rows(batch)), labels))
            loss.backward()
            optimizer.step()
"""

from rowmill.distributed._checkpoint.checkpoint import Checkpoint, saved_state, take_lock
from rowmill.distributed._checkpoint.manifest import CHECKPOINT_FILE, Manifest, write_durable
from rowmill.distributed._checkpoint.new_checkpoint import NewCheckpoint
from rowmill.distributed._checkpoint.remote import (
    PushOfRanks,
    checkpoints_of_ranks,
    is_of_ranks_at,
    restore_ranks,
)
from rowmill.distributed._checkpoint.versions import (
    checkpoint_of_ranks,
    drop_version_of_ranks,
    push_ranks,
    rollback_ranks,
    versions_of_ranks,
)
from rowmill.distributed._exchange.exchange import RowsOnWire
from rowmill.distributed._exchange.traffic import Traffic
from rowmill.distributed._liveness.watch import Watch
from rowmill.distributed.collection import Prepared, ShardedCollection
from rowmill.distributed.cost import Room, Speeds, TableLoad
from rowmill.distributed.feed import FeedOfRanks
from rowmill.distributed.pipeline import Pipeline
from rowmill.distributed.placement import PLACEMENTS, PlacementKind
from rowmill.distributed.plan import (
    PlacementPlan,
    mean_loads,
    plan_of_ranks,
    plan_placements,
    table_loads,
)
from rowmill.distributed.ranks import Ranks
from rowmill.distributed.row_cache import CacheUse, RowCache
from rowmill.distributed.strategy import STRATEGIES, Strategy

__all__ = [
    "CHECKPOINT_FILE",
    "PLACEMENTS",
    "STRATEGIES",
    "CacheUse",
    "Checkpoint",
    "FeedOfRanks",
    "Manifest",
    "NewCheckpoint",
    "Pipeline",
    "PlacementKind",
    "PlacementPlan",
    "Prepared",
    "PushOfRanks",
    "Ranks",
    "Room",
    "RowCache",
    "RowsOnWire",
    "ShardedCollection",
    "Speeds",
    "Strategy",
    "TableLoad",
    "Traffic",
    "Watch",
    "checkpoint_of_ranks",
    "checkpoints_of_ranks",
    "drop_version_of_ranks",
    "is_of_ranks_at",
    "mean_loads",
    "plan_of_ranks",
    "plan_placements",
    "push_ranks",
    "restore_ranks",
    "rollback_ranks",
    "saved_state",
    "table_loads",
    "take_lock",
    "versions_of_ranks",
    "write_durable",
]
