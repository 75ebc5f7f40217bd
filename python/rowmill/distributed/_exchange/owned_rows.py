"""What an owner of rows reads for a forward, pools and sends, and the gradients that come back."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from rowmill.ops.lookup import lookup_rows

if TYPE_CHECKING:
    from torch import Tensor

    from rowmill.distributed._exchange.buffers import Buffers
    from rowmill.distributed._exchange.plan import Plan
    from rowmill.distributed._exchange.pooled import Pool
    from rowmill.distributed._exchange.requests import Requests
    from rowmill.store.steps import LookupGuard


class OwnedRows:
    """Distinct rows requested from a rank and vectors pooled from others, flat, in the plan's order of tables.

    Attributes:
        rows: The rows and vectors of every chunk; valid until the next exchange.
        floats: Number of floats of every chunk.
    """

    def __init__(self, plan: Plan, requests: Requests, buffers: Buffers, *, training: bool) -> None:
        owned = requests.owned
        ids = _joined([one.unique.ids for one in owned])
        times = _joined([asked.times for asked in owned])
        counts = [count for one in owned for count in one.unique.counts_listed]
        sent = [count for one in owned for count in one.vectors.counts_listed]
        rows = [0, *accumulate(counts)]
        dims = [table.dim for table in plan.tables]
        floats = [0, *accumulate(count * dim for count, dim in zip(sent, dims, strict=True))]
        pooled = [0] * plan.requested + [
            count * dim for count, dim in zip(counts, dims, strict=True)
        ][plan.requested :]
        floats_pooled = [0, *accumulate(pooled)]
        flat = buffers.take("owned", 0, floats[-1])
        to_pool = buffers.take("pooled", 0, floats_pooled[-1])
        self._groups: list[tuple[LookupGuard, slice, bool]] = []
        for places in plan.groups:
            # Tables without ids take part too, so that their step is counted as on one rank.
            begin, end = places.start, places.stop
            asked = slice(rows[begin], rows[end])
            pools = begin >= plan.requested
            at = floats_pooled if pools else floats
            out = slice(at[begin], at[end])
            guard = lookup_rows(
                plan.tables[begin:end],
                ids[asked],
                counts[begin:end],
                times[asked],
                (to_pool if pools else flat)[out],
                training=training and not plan.tables[begin].store.read_only,
            )
            if guard is not None:
                self._groups.append((guard, out, pools))
        self._pools: list[tuple[Pool, slice, slice]] = []
        for pool in requests.pools:
            begin, end = pool.places.start, pool.places.stop
            of_rows = slice(floats_pooled[begin], floats_pooled[end])
            of_vectors = slice(floats[begin], floats[end])
            pool.pool(to_pool[of_rows], flat[of_vectors])
            self._pools.append((pool, of_rows, of_vectors))
        self._floats_pooled = floats_pooled[-1]
        self.floats = [floats[asked.places.stop] - floats[asked.places.start] for asked in owned]
        self.rows = torch.split(flat, self.floats)

    def arrive(self, gradient: Tensor) -> None:
        """Take the gradient of all rows and vectors; called in a backward pass."""
        pooled = torch.empty(self._floats_pooled)
        for pool, of_rows, of_vectors in self._pools:
            pool.spread(gradient[of_vectors], pooled[of_rows])
        for guard, place, pools in self._groups:
            guard.arrive((pooled if pools else gradient)[place])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
