"""Pooled vectors of many features whose rows are sharded over the stores of all ranks."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rowmill.distributed._exchange.category import category_of
from rowmill.distributed._exchange.exchange import Exchange, RowsOnWire, check_rows_on_wire
from rowmill.distributed._exchange.owned_rows import OwnedRows
from rowmill.distributed._exchange.plan import Asked, LookedUp, Placed, Plan
from rowmill.distributed._exchange.read_only_rows import check_read_only_rows
from rowmill.distributed.auto import planned
from rowmill.distributed.cost import Speeds
from rowmill.distributed.placement import AUTO
from rowmill.distributed.row_cache import HeldRows, on
from rowmill.errors import InvalidInput
from rowmill.nn.collection import check_output_dtype
from rowmill.nn.keyed import is_keyed, ragged
from rowmill.nn.ragged import RaggedBatch
from rowmill.nn.stored import StoredModule
from rowmill.ops.exchange import Bags, Unique, rank_sort, recover, weights_backward
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rowmill.distributed._exchange.chunk import Sent
    from rowmill.distributed._exchange.requests import Requests
    from rowmill.distributed._exchange.traffic import Traffic
    from rowmill.distributed.meter import Meter
    from rowmill.distributed.placement import PlacementSetting
    from rowmill.distributed.plan import PlacementPlan
    from rowmill.distributed.ranks import Ranks
    from rowmill.distributed.row_cache import CacheUse, Reads, RowCache
    from rowmill.distributed.strategy import Lane, Strategy
    from rowmill.nn import Feature
    from rowmill.store.store import Store
    from rowmill.store.tables import Table


@dataclass(eq=False)
class Prepared:
    """A batch whose ids were sent to the owners of their rows; the rest of its forward returns and pools the rows.

    Attributes:
        training: Whether this is a training get: rows are created and will be updated.
        requests: Requests of this rank to owners, and of all ranks to this rank.
        bags: Bags over received and cached rows, for pooling.
        answered: Bags over received rows only, for their gradients.
        looked: The batch.
        reads: The row cache's plan for this batch, if there is a cache.
        pooled: The pooled vectors, if rows were read ahead.
    """

    training: bool
    requests: Requests
    bags: list[Bags]
    answered: list[Bags]
    looked: LookedUp
    reads: Reads | None = None
    pooled: Tensor | None = None


class ShardedCollection(StoredModule):
    """An `EmbeddingCollection` over the stores of all ranks; a hash of table and id gives each row its owning rank.

    Every rank opens its own store with the same seed, creates the same tables in the same order, and looks up its own
    part of the batch. A row is updated once, with the sum of the gradients of all ranks. Forward and backward are
    collectives: a rank without samples passes an empty batch.

    Tables of another model can be used too, without creating or updating rows. Open them with `read_only=True`: either
    the stores as equally many ranks wrote them, or one store on all ranks. A sample of their rows is checked.

    Args:
        features: As for `EmbeddingCollection`. Features of one table must have the same `padding_idx`, and table names
            must be distinct across stores.
        ranks: The participating ranks.
        strategy: How categories share messages; results are equal.
        placement: By table name, "auto", "rows", "pooled", "whole", "whole:RANK" or "replicated", where "" stands for all other
            tables. Or one placement for all tables. "auto" (default): that of the `Checkpoint` that opened the store; for a
            new table it is planned from the first batches, see `place`.
        speeds: Speeds of links and cores from which "auto" plans, or a file for `Speeds.read`; None: the defaults of `Speeds`.
        rows_on_wire: "fp32", or "bf16" to halve the bytes of rows and gradients, rounded to nearest.
        chunk_bytes_max: Rows and gradients above this many bytes are split into messages of whole tables. The next is
            packed while one is sent, and two are in memory at a time. Results are equal.
        output_dtype: As for `EmbeddingCollection`.

    Raises:
        InvalidInput: On every rank, if an argument is invalid on one rank, or ranks differ in settings or tables.
    """

    def __init__(
        self,
        features: Iterable[Feature],
        *,
        ranks: Ranks,
        strategy: Strategy = "packed",
        placement: PlacementSetting | None = None,
        speeds: Speeds | str | os.PathLike[str] | None = None,
        rows_on_wire: RowsOnWire = "fp32",
        chunk_bytes_max: int | str = "64MiB",
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.ranks = ranks

        def make() -> tuple[tuple[Plan, list[Lane], int, Speeds], dict[str, Any]]:
            check_rows_on_wire(rows_on_wire)
            check_output_dtype(output_dtype)
            plan = Plan(tuple(features), ranks.count, placement)
            known = speeds if isinstance(speeds, Speeds) else Speeds()
            if isinstance(speeds, str | os.PathLike):
                known = Speeds.read(speeds)
            chunk = parse_size(chunk_bytes_max, name="chunk_bytes_max")
            if chunk == 0:
                raise InvalidInput(
                    'chunk_bytes_max must be > 0, got 0: give a size such as "16MiB"'
                )
            said = {
                "the strategy": strategy,
                "the speeds": known,
                "the rows on the wire": rows_on_wire,
                "chunk_bytes_max": chunk,
                "output_dtype": str(output_dtype),
            }
            return (plan, plan.lanes(strategy), chunk, known), said | plan.described()

        plan, lanes, chunk, self._speeds = ranks.agree(make, "the collection")
        check_read_only_rows([table for table in plan.tables if table.store.read_only], ranks)
        self._setting = placement
        self._strategy: Strategy = strategy
        number = ranks.whereabouts.begin("collection").number
        of = "" if number == 1 else f" of collection {number}"
        # With gloo, collectives of different kinds never match each other, so the first collection needs no separate group
        # for forwards. In small steps, alternating between the threads of two groups costs more than using one group.
        shared = number == 1 and dist.get_backend(ranks.group) == "gloo"
        there = ranks if shared else ranks.apart()
        self._exchange = Exchange(there, ranks.apart(), of, lanes, rows_on_wire, chunk)
        self._use(plan)
        self.features = plan.features
        self._width = sum(self.dims)
        self._dtype = output_dtype

    def _use(self, plan: Plan) -> None:
        """Look up by this plan from now on."""
        self._plan = plan
        # In place, because exchanges beside this one share the list.
        self._exchange.lanes[:] = plan.lanes(self._strategy)
        self._features_by_lane = [
            [f for f in plan.by_table if f.place in lane.places] for lane in self._exchange.lanes
        ]
        for table, chosen in plan.placements.items():
            if table not in plan.open:
                table.store.sharding.chosen[table.name] = str(chosen)

    def stored_tables(self) -> dict[str, Table]:
        """The tables of this rank's store, as `<table name>.weight`."""
        return {f"{feature.table.name}.weight": feature.table for feature in self.features}

    def matrix_rows(self, table: Table) -> int | None:
        """Raises `InvalidInput`: no rank has a matrix of all weights."""
        raise InvalidInput(
            f"the rows of table {table.name!r} are sharded over {self.ranks.count} ranks: save them with "
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
        """The store of this rank whose rows are trained; None if all stores are read-only."""
        return self._plan.trained

    @property
    def placements(self) -> dict[str, str]:
        """The placement of every table by name; "auto" if it is still to be planned."""
        plan = self._plan
        return {
            table.name: AUTO if table in plan.open else str(of)
            for table, of in plan.placements.items()
        }

    @property
    def unplaced(self) -> list[str]:
        """Names of the tables whose placement is still to be planned."""
        return [table.name for table in self._plan.open]

    def place(self, batches: Iterable[Any]) -> PlacementPlan | None:
        """Plan the placements that are still open, a collective. Equal batches give equal plans on every run.

        The first forward plans from its batch, and a `Pipeline` from its first batches. Call this to plan from others.
        Placements that move rows, which is `whole`, are planned only if a `Checkpoint` opened the store, because a later run
        must know them, and for tables without rows.

        Args:
            batches: Batches of this rank as in forward, not prepared. Invalid ones are left out.

        Returns:
            The plan; None if nothing was open, or if a rank has no valid batch, so that the next call plans.

        Raises:
            InvalidInput: On every rank, if a rank lacks disk for the whole tables that were fixed on it.
        """
        if not self._plan.open:
            return None
        plan = Plan(self.features, self.ranks.count, self._setting)
        if not plan.open or self._strategy == "source-hash":
            # Another collection has placed the tables; or vectors cannot be sent.
            self.place_as(dict.fromkeys((table.name for table in plan.open), "rows"))
            return None
        valid = [
            of
            for of in map(_ragged, batches)
            if isinstance(of, RaggedBatch) and not isinstance(self.look_up(of).asked, Exception)
        ]
        found = planned(
            self.features,
            valid,
            ranks=self.ranks,
            fixed={
                table.name: of for table, of in plan.placements.items() if table not in plan.open
            },
            speeds=self._speeds,
            rows_on_wire=self._exchange.rows,
        )
        if found is not None:
            self.place_as(found.placement)
        return found

    def place_as(self, placement: Mapping[str, str]) -> None:
        """Give tables whose placements are still open these placements, by name. Every rank must give the same."""
        plan = Plan(self.features, self.ranks.count, self._setting)
        names = {table.name: str(of) for table, of in plan.placements.items()}
        names |= {table.name: placement[table.name] for table in plan.open}
        self._use(Plan(self.features, self.ranks.count, names))

    @property
    def traffic(self) -> Traffic:
        """Collective calls and sent bytes of this rank."""
        return self._exchange.traffic

    @property
    def bytes_held(self) -> dict[str, int]:
        """Bytes of message buffers for rows and gradients, by buffer; they are kept between steps."""
        return self._exchange.buffers.bytes_held

    def measure(self, meter: Meter) -> None:
        """Report every later collective to this meter."""
        self._exchange.meter = meter

    def forward(self, batch: Any) -> Tensor:
        """Pool the bags of this rank's samples.

        Args:
            batch: Exactly the features of this collection, in any order: a RaggedBatch, or a KeyedJaggedTensor of
                TorchRec. Or a batch prepared by a `Pipeline`, or the error because of which this rank has no batch.

        Returns:
            `output_dtype` [B, sum of dims], the features in the order of the constructor.

        Raises:
            InvalidInput: On every rank, if the batch of one rank is invalid.
            ExchangeFailed: On every rank, if one rank could not read its rows.
        """
        if not isinstance(batch, Prepared):
            batch = self.ask(batch)
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

    def prepare(self, batch: Any, exchange: Exchange, *, training: bool) -> Prepared:
        """The first half of a forward, a collective: send ids to the owners of their rows.

        Args:
            batch: As in forward; or the error because of which this rank has no batch.
            exchange: The exchange to use.
            training: Whether this is a training get.
        """
        return self.send_ids(self.look_up(batch), exchange, training=training)

    def look_up(self, batch: Any) -> LookedUp:
        """Split a batch by lanes, without communication; `send_ids` raises the errors, so that every rank raises.

        Args:
            batch: As in forward, but not prepared.
        """
        batch = _ragged(batch)
        if isinstance(batch, Exception):
            return LookedUp(batch, 0, torch.device("cpu"))
        try:
            return self._plan.look_up(batch, self._features_by_lane, self._exchange.lanes)
        except Exception as error:
            return LookedUp(error, batch.batch_size, batch.values.device)

    def send_ids(
        self,
        looked: LookedUp,
        exchange: Exchange,
        *,
        training: bool,
        reads: Reads | None = None,
    ) -> Prepared:
        """Send the ids of a batch to the owners of their rows, a collective.

        Args:
            looked: The result of `look_up`.
            exchange: The exchange to use.
            training: Whether this is a training get.
            reads: The row cache's plan; only missing rows are requested from owners.
        """
        asked = looked.asked
        if isinstance(asked, Exception):
            exchange.ask(asked, [], training=training)
            raise AssertionError("ask() raises if it is given an error") from asked
        lookups = [one.lookups for one in asked] if reads is None else reads.missing
        requests = exchange.ask(lookups, [one.bags for one in asked], training=training)
        pairs = [self._bags(one, asked[one.lane], looked.count, reads) for one in requests.sent]
        bags, answered = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        return Prepared(training, requests, bags, answered, looked, reads)

    def _bags(self, sent: Sent, asked: Asked, count: int, reads: Reads | None) -> tuple[Bags, Bags]:
        """The bags of a lane or a chunk over all its rows, and over received rows only."""
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
        if reads is not None:
            return reads.bags(sent, bags, slice(first, last))
        if sent.back is sent.message:
            return bags, bags
        return bags, replace(bags, message=sent.back, combined=sent.combined_back)

    def held_rows(self, cache: RowCache, use: CacheUse, *, training: bool) -> HeldRows | None:
        """The rows that a row cache may hold during a run: those that the run does not train. None if it trains all."""
        tables = self._plan.tables
        kept = [
            (not training or table.store.read_only) and self._plan.placements[table].kind == "rows"
            for table in tables
        ]
        changing = [table for table, may in zip(tables, kept, strict=True) if may]
        changing = [table for table in changing if not table.store.read_only]
        if not any(kept):
            return None
        dims = [table.dim for table in tables]
        return HeldRows(cache, dims, kept, lambda: sum(t.core.steps for t in changing), use)

    def ask(self, batch: RaggedBatch) -> Prepared:
        """The first half of a forward, a collective: send ids to the owners of their rows.

        It does not depend on the values of rows, so it may run before the backward of an earlier batch.
        """
        self.place([batch])
        return self.prepare(batch, self._exchange, training=self.trains_rows)

    def begin(self, batch: RaggedBatch | Prepared) -> Coming:
        """Start a forward without waiting for rows, a collective; `Coming.pool` waits.

        Compute between `begin` and `Coming.pool` overlaps with the transfer of rows. In backward, the gradients of
        operations recorded between the two calls overlap with the transfer of row gradients.

        Args:
            batch: As in forward; or the result of `ask`.

        Raises:
            InvalidInput: On every rank, if the batch of one rank is invalid.
            ExchangeFailed: On the rank that could not read its rows; the other ranks raise it in `Coming.pool`.
        """
        prepared = batch if isinstance(batch, Prepared) else self.ask(batch)
        return self._begin(prepared, self._exchange, None)

    def pool(
        self, prepared: Prepared, exchange: Exchange, failure: Exception | None = None
    ) -> Tensor:
        """The second half of a forward, a collective: send rows back and pool bags from them.

        Args:
            prepared: The result of the first half.
            exchange: The exchange to use.
            failure: The error because of which this rank cannot send rows.
        """
        return self._begin(prepared, exchange, failure).pool()

    def _begin(self, prepared: Prepared, exchange: Exchange, failure: Exception | None) -> Coming:
        if failure is None and prepared.reads is not None:
            failure = prepared.reads.held.begin(prepared.reads)
        owned = failure or self._read(prepared, exchange)
        if isinstance(owned, Exception):
            next(exchange.send_rows(owned, prepared.requests))
            raise AssertionError("send_rows() raises if it is given an error")
        # Backward runs in the order of the training loop, so gradients use the exchange of its thread.
        return Coming(prepared, owned, exchange, self._exchange, self._dtype)

    def announce(self, prepared: Prepared, *, steps: int) -> None:
        """Prefetch the rows that other ranks requested from this rank; see `Store.lookahead`."""
        ids: dict[Table, Tensor] = {}
        for asked in prepared.requests.owned:
            tables = [self._plan.tables[place] for place in asked.places]
            ids |= zip(tables, asked.unique.by_category(), strict=True)
        for store in self._plan.stores:
            of_store = {table: mine for table, mine in ids.items() if table.store is store}
            store.lookahead(of_store, steps=steps)

    def kept_here(self, table: Table, ids: Tensor) -> Tensor:
        """Those of some distinct ids whose rows this rank keeps. Not a collective.

        Args:
            table: A table of this collection.
            ids: int64 [N].
        """
        placement = self._plan.placements[table]
        if placement.kind == "replicated":
            return ids
        if placement.rank is not None:
            return ids if placement.rank == self.ranks.rank else ids[:0]
        counts = torch.tensor([len(ids)], dtype=torch.int32)
        unique = Unique(ids, counts, torch.empty(0, dtype=torch.int32))
        of_ranks = rank_sort(unique, [category_of(table.name)], self.ranks.count)
        sizes: list[int] = of_ranks.counts.numpy().tolist()
        return torch.split(of_ranks.ids, sizes)[self.ranks.rank]

    def exchange_beside(self) -> Exchange:
        """Create another exchange with the same lanes, for another thread. A collective."""
        return self._exchange.beside()

    def split(self, pooled: Tensor) -> dict[str, Tensor]:
        """Split the result of forward by feature, `[B, dim]` each, into views without copies."""
        names = [feature.name for feature in self.features]
        return dict(zip(names, torch.split(pooled, self.dims, dim=1), strict=True))

    def extra_repr(self) -> str:
        """Names of the features and their tables."""
        return ", ".join(f"{feature.name}->{feature.table.name}" for feature in self.features)

    def _read(self, prepared: Prepared, exchange: Exchange) -> OwnedRows | Exception:
        """Read the distinct rows requested from this rank, with one call of the store per group of tables."""
        try:
            return OwnedRows(
                self._plan, prepared.requests, exchange.buffers, training=prepared.training
            )
        except Exception as error:
            return error


class Coming:
    """A forward whose rows are being sent to the ranks that requested them."""

    def __init__(
        self,
        prepared: Prepared,
        rows: OwnedRows,
        there: Exchange,
        back: Exchange,
        dtype: torch.dtype,
    ) -> None:
        # Not the batch itself: a pipeline stores the result of `pool` in it, which would make a reference cycle.
        self.requests, self.bags = prepared.requests, prepared.bags
        self.answered, self.reads = prepared.answered, prepared.reads
        self.scales = prepared.looked.scales
        self.rows = rows
        self.there = there
        """The exchange for rows."""
        self.back = back
        """The exchange for gradients."""
        self.dtype = dtype
        """dtype of pooled vectors."""
        self.training = prepared.training
        self.wires: Iterator[Tensor] = iter(())
        """Received rows per chunk; `next` waits."""
        self.add_gradients: Callable[[Sequence[Tensor]], None] | None = None
        """Waits for gradients and adds them to the given sums; set when they have been sent."""
        self._device = prepared.looked.device
        travelling = _Travel.apply(_anchor if prepared.training else None, self)
        assert isinstance(travelling, Tensor)
        self._travelling: Tensor | None = travelling

    def pool(self) -> Tensor:
        """Wait for the rows, and pool bags from them: `output_dtype` [B, sum of dims].

        Raises:
            ExchangeFailed: On every rank, if one rank could not read its rows.
        """
        out = _Pooled.apply(self._travelling, self, *(bags.weights for bags in self.bags))
        assert isinstance(out, Tensor)
        # Its backward refers to this object. In a reference cycle, the messages of a step would stay in memory until Python's
        # garbage collector finds them, which can take many steps.
        self._travelling = None
        return out.to(self._device)


class _Travel(torch.autograd.Function):
    """Forward: start sending rows. Backward: wait for their gradients.

    Autograd runs backwards in reverse order of recording. So the backward of operations recorded between this forward and
    that of `_Pooled` runs between the two backwards, while gradients are being sent.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor | None, coming: Coming) -> Tensor:
        ctx.coming = coming
        coming.wires = coming.there.send_rows(coming.rows.rows, coming.requests)
        return torch.empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, add_to = ctx.coming.rows, ctx.coming.add_gradients
        # Not in a reused buffer, because the step keeps this tensor until its end.
        sums = torch.zeros(sum(rows.floats))
        add_to(torch.split(sums, rows.floats))
        rows.arrive(sums)
        return None, None


class _Pooled(torch.autograd.Function):
    """Forward: wait for rows and pool them. Backward: start sending their gradients to the owners."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, coming: Coming, *weights: Tensor | None) -> Tensor:
        ctx.coming = coming
        bags, reads = coming.bags, coming.reads
        device = torch.device("cpu") if reads is None else reads.held.device
        out = torch.empty(bags[0].count, bags[0].width, dtype=coming.dtype, device=device)
        ctx.wires = list[Tensor | None]()
        for wire, sent, of_chunk, needed in zip(
            coming.wires, coming.requests.sent, bags, ctx.needs_input_grad[2:], strict=True
        ):
            rows = wire if reads is None else reads.held.complete(reads, sent, wire)
            recover(rows, of_chunk if device.type == "cpu" else on(of_chunk, device), out)
            ctx.wires.append(rows.cpu().clone() if needed else None)
        for scale in coming.scales:
            scale.apply(out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        coming, gradient = ctx.coming, gradient.contiguous().cpu()
        if coming.scales:
            gradient = gradient.clone()
            for scale in coming.scales:
                scale.apply(gradient)
        if coming.training:
            coming.add_gradients = coming.back.send_gradients(
                gradient, coming.answered, coming.requests
            )
        factors = [
            None if wire is None else weights_backward(wire, gradient, of_chunk)
            for wire, of_chunk in zip(ctx.wires, coming.bags, strict=True)
        ]
        return torch.empty(0) if coming.training else None, None, *factors


def _ragged(batch: Any) -> RaggedBatch | Exception:
    """A batch as a forward takes it, or the error that every rank is to raise: other ranks would wait if one raised alone."""
    if is_keyed(batch):
        try:
            return ragged(batch, weighted=batch.weights_or_none() is not None)
        except Exception as error:
            return error
    if isinstance(batch, (RaggedBatch, Exception)):
        return batch
    return InvalidInput(
        f"a batch must be a RaggedBatch, got {type(batch).__name__}; for no samples, pass a RaggedBatch with offsets [0]"
    )


_place_of: Callable[[Placed], int] = attrgetter("place")

_anchor = torch.empty(0, requires_grad=True)
"""An input with `requires_grad`, so that autograd records the exchange even on a rank without requests: backward is a
collective."""
