"""Modules of all commands and ranks: a server imports this one before it forks processes."""

import contextlib
import gc
from importlib import import_module

from rowmill.errors import TorchTooOld

for name in (
    "torch._dynamo",
    "torch.distributed.run",
    "rowmill.cli",
    "rowmill.train.run",
    "rowmill.ctr.ranked_task",
    "rowmill.ctr.loaded_clicks",
    "rowmill.kge.ranked_task",
    "rowmill.kge.loaded_triples",
    "rowmill.gnn.ranked_task",
    "rowmill.gnn.loaded_nodes",
    "rowmill.distributed",
):
    import_module(name)
with contextlib.suppress(TorchTooOld):
    import_module("rowmill.partition.export")

# A garbage collection in a forked process would copy every page of the modules.
gc.freeze()
