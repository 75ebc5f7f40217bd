"""A training step of a hybrid-parallel DLRM, with times per phase: tables are sharded, dense layers are replicated.

Shapes: B samples of this rank, F tables, D weights per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.dlrm_scaling.buckets import Buckets
from rowmill.ctr.models.dcn_v2 import CrossLayer
from rowmill.ctr.models.layers import mlp
from rowmill.ops.interaction import interaction
from rowmill.optim import SplitAdagrad, SplitSGD

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.dlrm_scaling.random_batch import RandomBatch
    from benchmarks.dlrm_scaling.shapes import Shape
    from benchmarks.dlrm_scaling.timeline import Timeline
    from rowmill.distributed import ShardedCollection
    from rowmill.distributed.collection import Coming, Prepared

Comm = Literal["blocking", "overlap"]
Precision = Literal["fp32", "bf16", "split-bf16"]

PHASES = (
    "lookup",
    "bottom MLP",
    "interaction",
    "top MLP",
    "top MLP backward",
    "interaction backward",
    "bottom MLP backward",
    "lookup backward",
    "optimizer",
)
"""Phases of a rank's work, in the order of `blocking`. Lookup includes all work for rows: deduplicating ids, reading and
sending rows, pooling bags. Its backward pass sums gradients and updates rows."""


class Crosses(nn.Module):
    """Cross layers over the concatenated dense and pooled vectors, as in MLPerf's DLRM-DCNv2."""

    def __init__(self, width: int, layers: int, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CrossLayer(width, rank=rank) for _ in range(layers))

    def forward(self, dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
        """The output of the cross layers, `[B, (F + 1) D]`."""
        first = torch.cat([dense_BD, pooled_BFD.flatten(1)], dim=1)
        crossed = first
        for layer in self.layers:
            crossed = layer(first, crossed)
        return crossed


class Pairs(nn.Module):
    """The dot interaction in the dtype of the rows, as in `rowmill.ctr.models.DLRM`."""

    def forward(self, dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
        """Dense vector and dot products of all pairs, `[B, D + F (F + 1) / 2]`."""
        return interaction(dense_BD.to(pooled_BFD.dtype), pooled_BFD)


class DenseHalf(nn.Module):
    """A DLRM without its tables."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        features, dim = len(shape.rows), shape.dim
        if shape.cross_layers:
            width = (features + 1) * dim
            self.interact: nn.Module = Crosses(width, shape.cross_layers, shape.cross_rank)
        else:
            width = dim + (features + 1) * features // 2
            self.interact = Pairs()
        self.bottom = mlp(shape.dense, [*shape.bottom, dim])
        self.top = mlp(width, [*shape.top, 1], relu_last=False)


def dense_optimizer(shape: Shape, precision: Precision, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of the dense layers; `split-bf16` converts their weights to bfloat16 here."""
    split = precision == "split-bf16"
    if shape.optimizer == "adagrad":
        return (SplitAdagrad if split else torch.optim.Adagrad)(model.parameters(), lr=shape.lr)
    return (SplitSGD if split else torch.optim.SGD)(model.parameters(), lr=shape.lr)


class Trainer:
    """The training loop of one rank.

    Args:
        shape: Shape of the model.
        rows: The sharded tables.
        comm: Whether collectives overlap with work, or each is waited for where it begins.
        precision: Precision of layers; tables have their own.
        samples: Samples per step over all ranks.
        device: Device of the dense layers.
        timeline: Measures every step.
    """

    def __init__(
        self,
        shape: Shape,
        rows: ShardedCollection,
        *,
        comm: Comm,
        precision: Precision,
        samples: int,
        device: torch.device,
        timeline: Timeline,
    ) -> None:
        self.model = DenseHalf(shape).to(device)
        self.optimizer = dense_optimizer(shape, precision, self.model)
        self.timeline = timeline
        self.use(rows)
        self.buckets = Buckets(
            self.model.parameters(),
            overlap=comm == "overlap",
            dtype=None if precision == "fp32" else torch.bfloat16,
            meter=timeline,
        )
        self._overlap = comm == "overlap"
        self._coming: Coming | None = None
        """Prepared rows of the next step."""
        self._features, self._dim = len(shape.rows), shape.dim
        self._samples = samples
        self._device = device
        self._narrow = torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32")

    def use(self, rows: ShardedCollection) -> None:
        """Train these rows from now on. The last step must not have had a following batch."""
        self.rows = rows
        rows.measure(self.timeline)

    def step(self, batch: RandomBatch, following: RandomBatch | None = None) -> Tensor:
        """Run forward, backward and update; returns this rank's share of the mean loss, float64.

        Args:
            batch: The samples of this rank.
            following: The samples of the next step, or None. With overlap, their rows are requested during this step.
        """
        with self.timeline.step():
            return self._step(batch, following)

    def _step(self, batch: RandomBatch, following: RandomBatch | None) -> Tensor:
        phase, model = self.timeline.phase, self.model
        coming, self._coming = self._coming, None
        if coming is None:
            with phase("lookup"):
                coming = self.rows.begin(batch.ids)
        pooled = None
        if not self._overlap:
            with phase("lookup"):
                pooled = coming.pool()
        # With overlap, this hides the transfer of rows, and in the backward pass the transfer of their gradients.
        with phase("bottom MLP"), self._narrow:
            dense_BD = model.bottom(batch.dense.to(self._device))
        if pooled is None:
            with phase("lookup"):
                pooled = coming.pool()
        # Detach the parts from each other, so that the backward pass can run part by part.
        with phase("interaction"), self._narrow:
            dense_cut = dense_BD.detach().requires_grad_()
            pooled_cut = pooled.detach().to(self._device).requires_grad_()
            pooled_BFD = pooled_cut.view(-1, self._features, self._dim)
            pairs = model.interact(dense_cut, pooled_BFD)
        with phase("top MLP"):
            pairs_cut = pairs.detach().requires_grad_()
            with self._narrow:
                logits = model.top(pairs_cut).squeeze(1)
            labels = batch.labels.to(self._device)
            loss = binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")
            share = loss / self._samples
        with phase("top MLP backward"):
            self.optimizer.zero_grad()
            share.backward()
        with phase("interaction backward"):
            pairs.backward(pairs_cut.grad)
        with phase("bottom MLP backward"):
            assert dense_cut.grad is not None
            assert pooled_cut.grad is not None
            gradient = pooled_cut.grad.to(pooled.device)
            ahead = following if self._overlap else None
            asked: list[Prepared] = []
            self._mark(pooled, lambda: asked.extend(self._ask(ahead)))
            if self._overlap:
                torch.autograd.backward([dense_BD, pooled], [dense_cut.grad, gradient])
            else:
                dense_BD.backward(dense_cut.grad)
                pooled.backward(gradient)
        # All rows are updated, so the rows of the next step can be sent during the rest of this one.
        for prepared in asked:
            with phase("lookup"):
                self._coming = self.rows.begin(prepared)
        with phase("optimizer"):
            self.buckets.finish()
            self.optimizer.step()
        return share.detach().double().cpu()

    def _ask(self, batch: RandomBatch | None) -> list[Prepared]:
        """Send the ids of a batch, if there is one, to the owners of their rows."""
        if batch is None:
            return []
        with self.timeline.phase("lookup"), torch.enable_grad():
            return [self.rows.ask(batch.ids)]

    def _mark(self, pooled: Tensor, before_gradients: Callable[[], None]) -> None:
        """Make the timeline switch phases when the backward pass enters and leaves the lookup.

        Pooled vectors have two nodes in the autograd graph: one sends the gradients of rows, the other waits for them. The row
        updates follow the second node and come last.

        Args:
            pooled: The pooled vectors.
            before_gradients: Called while gradients are being sent, before the wait for them.
        """
        switch = self.timeline.switch
        pools = pooled.grad_fn
        assert pools is not None
        travels = pools.next_functions[0][0]
        assert travels is not None

        def waits(*_: object) -> None:
            before_gradients()
            switch("lookup backward")

        pools.register_prehook(lambda *_: switch("lookup backward"))
        pools.register_hook(lambda *_: switch("bottom MLP backward"))
        travels.register_prehook(waits)
