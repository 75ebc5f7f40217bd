"""Modules of all commands and ranks: a server imports this one before it forks processes."""

import gc
from importlib import import_module

for name in (
    "torch._dynamo",
    "torch.distributed.run",
    "rowmill.cli",
    "rowmill.train",
    "rowmill.ctr.ranked_task",
    "rowmill.ctr.loaded_clicks",
    "rowmill.kge.ranked_task",
    "rowmill.kge.loaded_triples",
    "rowmill.gnn.ranked_task",
    "rowmill.gnn.loaded_nodes",
    "rowmill.distributed",
    "rowmill.partition.export",
):
    import_module(name)

# A garbage collection in a forked process would copy every page of the modules.
gc.freeze()
