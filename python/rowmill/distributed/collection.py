"""Pooled vectors of many features whose rows are spread over the stores of all ranks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rowmill.distributed._exchange.exchange import Exchange, RowsOnWire, check_rows_on_wire
from rowmill.distributed._exchange.plan import Asked, LookedUp, Placed, Plan
from rowmill.distributed.row_cache import HeldRows, on
from rowmill.errors import InvalidInput
from rowmill.nn.collection import check_output_dtype
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import StoredModule
from rowmill.ops.exchange import Bags, recover, weights_backward
from rowmill.ops.lookup import lookup_rows
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rowmill.distributed._exchange.chunk import Owned, Sent
    from rowmill.distributed._exchange.traffic import Traffic
    from rowmill.distributed.meter import Meter
    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.row_cache import CacheUse, Reads, RowCache
    from rowmill.distributed.strategy import Lane, Strategy
    from rowmill.nn import Feature
    from rowmill.store.steps import LookupGuard
    from rowmill.store.store import Store
    from rowmill.store.tables import Table


@dataclass(eq=False)
class Prepared:
    """A batch whose ids are with the owners of their rows: what is left of its forward is to send rows.

    Attributes:
        training: Whether rows are born and will be updated.
        sent: What this rank asked for, lane by lane, or chunk by chunk.
        owned: What this rank is asked for.
        bags: How rows become pooled vectors.
        answered: How gradients of the rows that came go back.
        device: Where pooled vectors go.
        forward: Which forward it is, in errors.
        reads: What a row cache has of it, if there is one.
        pooled: The pooled vectors, if rows were read ahead.
    """

    training: bool
    sent: list[Sent]
    owned: list[Owned]
    bags: list[Bags]
    answered: list[Bags]
    device: torch.device
    forward: str
    reads: Reads | None = None
    pooled: Tensor | None = None


class ShardedCollection(StoredModule):
    """An `EmbeddingCollection` over the stores of all ranks: each row lies with the one rank that owns it.

    Every rank opens a store of its own with the same seed, makes the same tables in the same order, and looks up its own
    part of the batch. A row gets the sum of the gradients of all ranks, in one update. Forward and backward are
    collectives: a rank without samples takes part with a batch of none.

    Tables may also be those of another model, in stores opened `read_only=True` as its ranks wrote them, or in one store
    that all ranks open: their rows are looked up, and never born or updated.

    Args:
        features: As for `EmbeddingCollection`; features of one table share their `padding_idx`, and tables of different
            stores differ in name.
        ranks: Who takes part.
        strategy: How categories share messages; results are equal.
        rows_on_wire: "fp32", or "bf16" for half the bytes of rows and gradients, rounded to the nearest.
        chunk_bytes_max: Rows and gradients of more bytes than these go in several messages, of whole tables each; while one
            travels, the next is packed. Two are in memory at a time. Results are equal.
        output_dtype: As of `EmbeddingCollection`.
    """

    def __init__(
        self,
        features: Iterable[Feature],
        *,
        ranks: Ranks,
        strategy: Strategy = "packed",
        rows_on_wire: RowsOnWire = "fp32",
        chunk_bytes_max: int | str = "64MiB",
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.ranks = ranks

        def make() -> tuple[tuple[Plan, list[Lane], int], dict[str, Any]]:
            check_rows_on_wire(rows_on_wire)
            check_output_dtype(output_dtype)
            plan = Plan(tuple(features))
            chunk = parse_size(chunk_bytes_max, name="chunk_bytes_max")
            if chunk == 0:
                raise InvalidInput(
                    'chunk_bytes_max must be above 0, got 0: give a size such as "16MiB"'
                )
            said = {
                "the strategy": strategy,
                "the rows on the wire": rows_on_wire,
                "chunk_bytes_max": chunk,
                "output_dtype": str(output_dtype),
            }
            return (plan, plan.lanes(strategy), chunk), said | plan.described()

        self._plan, lanes, chunk = ranks.agree(make, "the collection")
        number = ranks.whereabouts.begin("collection").number
        of = "" if number == 1 else f" of collection {number}"
        # In a small step the threads of two groups by turns cost more than those of one; and in gloo no collective meets
        # one of another kind, so forwards of one collection need no group of their own.
        shared = number == 1 and dist.get_backend(ranks.group) == "gloo"
        there = ranks if shared else ranks.apart()
        self._exchange = Exchange(there, ranks.apart(), of, lanes, rows_on_wire, chunk)
        self.features = self._plan.features
        self._features_by_lane = [
            [f for f in self._plan.by_table if f.place in lane.places]
            for lane in self._exchange.lanes
        ]
        self._width = sum(self.dims)
        self._dtype = output_dtype

    def stored_tables(self) -> dict[str, Table]:
        """The tables of this rank's store, as `<table name>.weight`."""
        return {f"{feature.table.name}.weight": feature.table for feature in self.features}

    def matrix_rows(self, table: Table) -> int | None:
        """No rank has a matrix of all weights."""
        raise InvalidInput(
            f"the rows of table {table.name!r} are spread over {self.ranks.count} ranks: save them with "
            "store.checkpoint() on every rank, and the rest of the model with "
            "rowmill.nn.dense_state_dict(model)"
        )

    @property
    def dims(self) -> list[int]:
        """The width of each feature's vector."""
        return [feature.table.dim for feature in self.features]

    @property
    def trains_rows(self) -> bool:
        """Whether a forward now is a training get."""
        return super().trains_rows and self._plan.trained is not None

    @property
    def trained_store(self) -> Store | None:
        """The store of this rank whose rows are trained; None if all are another model's."""
        return self._plan.trained

    @property
    def traffic(self) -> Traffic:
        """Rounds and bytes of this rank."""
        return self._exchange.traffic

    @property
    def bytes_held(self) -> dict[str, int]:
        """Bytes of memory that rows and their gradients are packed into and arrive in, which is kept from step to step."""
        return self._exchange.buffers.bytes_held

    def measure(self, meter: Meter) -> None:
        """Tell this one of every collective from now on."""
        self._exchange.meter = meter

    def forward(self, batch: RaggedBatch | Prepared) -> Tensor:
        """Pool the bags of this rank's samples.

        Args:
            batch: Exactly the features of this collection, in any order; or what a `Pipeline` made of them.

        Returns:
            `output_dtype` [B, sum of dims], the features in the order of the constructor.

        Raises:
            InvalidInput: On every rank, if the batch of one is wrong.
            ExchangeFailed: On every rank, if one could not read its rows.
        """
        if not isinstance(batch, Prepared):
            batch = self.prepare(batch, self._exchange, training=self.trains_rows)
        failure = None
        if batch.training != self.trains_rows:
            modes = ("evaluation", "training")
            failure = InvalidInput(
                f"this batch was prepared for {modes[batch.training]}: call train() or eval() before Pipeline.run"
            )
        if batch.pooled is None:
            return self.pool(batch, self._exchange, failure)
        if failure is not None:
            raise failure
        return batch.pooled

    def prepare(
        self, batch: RaggedBatch | Exception, exchange: Exchange, *, training: bool
    ) -> Prepared:
        """The first half of a forward, a collective: ids to the owners of their rows.

        Args:
            batch: As in forward; or why this rank has none.
            exchange: What carries them.
            training: Whether rows are born and will be updated.
        """
        return self.send_ids(self.look_up(batch), exchange, training=training)

    def look_up(self, batch: RaggedBatch | Exception) -> LookedUp:
        """Cut a batch by lanes; nothing is sent, and what is wrong is raised by `send_ids`."""
        # Whoever is not type-checked hands over anything, and the others would wait.
        if not isinstance(batch, (RaggedBatch, Exception)):  # pyright: ignore[reportUnnecessaryIsInstance]
            batch = InvalidInput(
                f"a batch must be a RaggedBatch, got {type(batch).__name__}; one without samples has offsets [0]"
            )
        if isinstance(batch, Exception):
            return LookedUp(batch, 0, torch.device("cpu"))
        asked: list[Asked] | Exception
        try:
            asked = self._plan.look_up(batch, self._features_by_lane, self._exchange.lanes)
        except Exception as error:
            asked = error
        return LookedUp(asked, batch.batch_size, batch.values.device)

    def send_ids(
        self,
        looked: LookedUp,
        exchange: Exchange,
        *,
        training: bool,
        reads: Reads | None = None,
    ) -> Prepared:
        """Send what was looked up to the owners, a collective.

        Args:
            looked: What `look_up` gave.
            exchange: What carries ids.
            training: Whether rows are born and will be updated.
            reads: What a row cache has; owners are asked for the rest.
        """
        asked = looked.asked
        if isinstance(asked, Exception):
            exchange.ask(asked, training=training)
            raise AssertionError("a rank without a batch raises") from asked
        lookups = [one.lookups for one in asked] if reads is None else reads.missing
        sent, owned, forward = exchange.ask(lookups, training=training)
        pairs = [self._bags(one, asked[one.lane], looked.count, reads) for one in sent]
        bags, answered = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return Prepared(training, sent, owned, bags, answered, looked.device, forward, reads)

    def _bags(self, sent: Sent, asked: Asked, count: int, reads: Reads | None) -> tuple[Bags, Bags]:
        """The bags of a lane or a chunk over all its rows, and over those that come back."""
        lane, places = self._features_by_lane[sent.lane], sent.places
        begin = bisect_left(lane, places.start, key=_place_of)
        end = bisect_left(lane, places.stop, key=_place_of)
        offsets, weights = asked.offsets[begin * count : end * count + 1], asked.weights
        first, last = int(offsets[0]), int(offsets[-1])
        if len(offsets) < len(asked.offsets):
            offsets = offsets - first
            weights = None if weights is None else weights[first:last]
        recovered = [feature.recovered for feature in lane[begin:end]]
        bags = Bags(sent.message, sent.combined, offsets, weights, recovered, count, self._width)
        return (bags, bags) if reads is None else reads.bags(sent, bags, slice(first, last))

    def held_rows(self, cache: RowCache, use: CacheUse, *, training: bool) -> HeldRows | None:
        """What a run of batches may keep on this rank: rows that it does not train. None if it trains all."""
        tables = self._plan.tables
        kept = [not training or table.store.read_only for table in tables]
        changing = [table for table, may in zip(tables, kept, strict=True) if may]
        changing = [table for table in changing if not table.store.read_only]
        if not any(kept):
            return None
        dims = [table.dim for table in tables]
        return HeldRows(cache, dims, kept, lambda: sum(t.core.steps for t in changing), use)

    def ask(self, batch: RaggedBatch) -> Prepared:
        """The first half of a forward, a collective: ids to the owners of their rows.

        Nothing here depends on what rows are, so it may come before the backward of an earlier batch.
        """
        return self.prepare(batch, self._exchange, training=self.trains_rows)

    def begin(self, batch: RaggedBatch | Prepared) -> Coming:
        """All of a forward but waiting, a collective: rows are on their way when this returns.

        What is done before `Coming.pool` hides the way of the rows. In backward, gradients of rows travel while what was
        recorded meanwhile is differentiated, which is why this order of calls is all that overlap takes.

        Args:
            batch: As in forward; or what `ask` made of it.

        Raises:
            InvalidInput: On every rank, if the batch of one is wrong.
            ExchangeFailed: On the rank that could not read its rows; the others raise it in `Coming.pool`.
        """
        prepared = batch if isinstance(batch, Prepared) else self.ask(batch)
        return self._begin(prepared, self._exchange, None)

    def pool(
        self, prepared: Prepared, exchange: Exchange, failure: Exception | None = None
    ) -> Tensor:
        """The second half of a forward, a collective: rows back, and bags pooled from them.

        Args:
            prepared: The first half.
            exchange: What carries rows.
            failure: Why this rank can send none.
        """
        return self._begin(prepared, exchange, failure).pool()

    def _begin(self, prepared: Prepared, exchange: Exchange, failure: Exception | None) -> Coming:
        if failure is None and prepared.reads is not None:
            failure = prepared.reads.held.begin(prepared.reads)
        owned = failure or self._read(prepared, exchange)
        if isinstance(owned, Exception):
            next(exchange.send_rows(owned, prepared.sent, prepared.owned, prepared.forward))
            raise AssertionError("a rank that could not read raises")
        # Gradients come in the order of the loop, and so over the exchange of its thread.
        return Coming(prepared, owned, exchange, self._exchange, self._dtype)

    def announce(self, prepared: Prepared, *, steps: int) -> None:
        """Let the store of this rank bring the rows into memory that it is asked for; see `Store.lookahead`."""
        ids: dict[Table, Tensor] = {}
        for asked in prepared.owned:
            tables = [self._plan.tables[place] for place in asked.places]
            ids |= zip(tables, asked.unique.by_category(), strict=True)
        for store in self._plan.stores:
            of_store = {table: mine for table, mine in ids.items() if table.store is store}
            store.lookahead(of_store, steps=steps)

    def exchange_beside(self) -> Exchange:
        """Another exchange of the same messages, for another thread. A collective."""
        return self._exchange.beside()

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """The result of forward by feature: views, no copies."""
        names = [feature.name for feature in self.features]
        return dict(zip(names, torch.split(pooled, self.dims, dim=1), strict=True))

    def extra_repr(self) -> str:
        """The features with their tables."""
        return ", ".join(f"{feature.name}->{feature.table.name}" for feature in self.features)

    def _read(self, prepared: Prepared, exchange: Exchange) -> _OwnedRows | Exception:
        """The distinct rows that this rank is asked for: one call of the store for each group of tables."""
        try:
            return _OwnedRows(self._plan, prepared, exchange)
        except Exception as error:
            return error


class _OwnedRows:
    """Distinct rows that a rank is asked for, flat, table after table as the plan has them.

    Attributes:
        rows: The rows of every chunk, until the next exchange.
        floats: How many they are, chunk by chunk.
    """

    def __init__(self, plan: Plan, prepared: Prepared, exchange: Exchange) -> None:
        unique = [asked.unique for asked in prepared.owned]
        ids = _joined([one.ids for one in unique])
        times = _joined([asked.times for asked in prepared.owned])
        counts = [count for one in unique for count in one.counts_listed]
        rows = [0, *accumulate(counts)]
        widths = [count * table.dim for count, table in zip(counts, plan.tables, strict=True)]
        floats = [0, *accumulate(widths)]
        flat = exchange.buffers.take("owned", 0, floats[-1])
        self._groups: list[tuple[LookupGuard, slice]] = []
        for places in plan.groups:
            # A table without ids is asked as well: its step counts, as it would on one rank.
            begin, end = places.start, places.stop
            asked = slice(rows[begin], rows[end])
            out = slice(floats[begin], floats[end])
            guard = lookup_rows(
                plan.tables[begin:end],
                ids[asked],
                counts[begin:end],
                times[asked],
                flat[out],
                training=prepared.training and not plan.tables[begin].store.read_only,
            )
            if guard is not None:
                self._groups.append((guard, out))
        self.floats = [
            floats[asked.places.stop] - floats[asked.places.start] for asked in prepared.owned
        ]
        self.rows = torch.split(flat, self.floats)

    def arrive(self, gradient: Tensor) -> None:
        """Take the gradient of all rows, in a backward pass."""
        for guard, place in self._groups:
            guard.arrive(gradient[place])


class Coming:
    """Rows of a batch on their way to those who asked."""

    def __init__(
        self,
        prepared: Prepared,
        rows: _OwnedRows,
        there: Exchange,
        back: Exchange,
        dtype: torch.dtype,
    ) -> None:
        # Not the batch itself, in which a pipeline keeps what `pool` returns.
        self.sent, self.owned, self.bags = prepared.sent, prepared.owned, prepared.bags
        self.answered, self.reads = prepared.answered, prepared.reads
        self.rows = rows
        self.there = there
        """What carries rows."""
        self.back = back
        """What carries gradients."""
        self.dtype = dtype
        """Of pooled vectors."""
        self.training, self.forward = prepared.training, prepared.forward
        self.wires: Iterator[Tensor] = iter(())
        """Waits for rows, chunk by chunk."""
        self.add_gradients: Callable[[Sequence[Tensor]], None] | None = None
        """Waits for gradients, once they are on their way."""
        self._device = prepared.device
        travelling = _Travel.apply(_anchor if prepared.training else None, self)
        assert isinstance(travelling, Tensor)
        self._travelling = travelling

    def pool(self) -> Tensor:
        """Wait for the rows, and pool bags from them: [B, sum of dims].

        Raises:
            ExchangeFailed: On every rank, if one could not read its rows.
        """
        out = _Pooled.apply(self._travelling, self, *(bags.weights for bags in self.bags))
        assert isinstance(out, Tensor)
        return out.to(self._device)


class _Travel(torch.autograd.Function):
    """Rows of owners on their way, and in backward what waits for their gradients.

    Autograd takes first what was recorded last. So between the two backwards lies that of whatever was recorded between
    the two forwards.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor | None, coming: Coming) -> Tensor:
        ctx.coming = coming
        coming.wires = coming.there.send_rows(
            coming.rows.rows, coming.sent, coming.owned, coming.forward
        )
        return torch.empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, add_to = ctx.coming.rows, ctx.coming.add_gradients
        # A step keeps it until it is over, so it is in no buffer.
        sums = torch.zeros(sum(rows.floats))
        add_to(torch.split(sums, rows.floats))
        rows.arrive(sums)
        return None, None


class _Pooled(torch.autograd.Function):
    """Rows that came to pooled vectors; their gradients go the same way back, in one exchange."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, coming: Coming, *weights: Tensor | None) -> Tensor:
        ctx.coming = coming
        bags, reads = coming.bags, coming.reads
        device = torch.device("cpu") if reads is None else reads.held.device
        out = torch.empty(bags[0].count, bags[0].width, dtype=coming.dtype, device=device)
        ctx.wires = list[Tensor | None]()
        for wire, sent, of_chunk, needed in zip(
            coming.wires, coming.sent, bags, ctx.needs_input_grad[2:], strict=True
        ):
            rows = wire if reads is None else reads.held.complete(reads, sent, wire)
            recover(rows, of_chunk if device.type == "cpu" else on(of_chunk, device), out)
            ctx.wires.append(rows.cpu().clone() if needed else None)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        coming, gradient = ctx.coming, gradient.contiguous().cpu()
        if coming.training:
            coming.add_gradients = coming.back.send_gradients(
                gradient, coming.answered, coming.sent, coming.owned, coming.forward
            )
        factors = [
            None if wire is None else weights_backward(wire, gradient, of_chunk)
            for wire, of_chunk in zip(ctx.wires, coming.bags, strict=True)
        ]
        return torch.empty(0) if coming.training else None, None, *factors


_place_of: Callable[[Placed], int] = attrgetter("place")

_anchor = torch.empty(0, requires_grad=True)
"""Makes autograd record an exchange on a rank that is asked for nothing as well: others wait for its gradients."""


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
