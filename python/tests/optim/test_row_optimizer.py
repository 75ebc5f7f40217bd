"""Deferred updates: accumulation, clipping, loss scaling and schedules, each compared with plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rowmill.errors import InvalidInput
from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD, Adagrad, RowOptimizer

if TYPE_CHECKING:
    import rowmill

ROWS, DIM = 12, 4


class Model(nn.Module):
    def __init__(self, bag: nn.Module) -> None:
        super().__init__()
        self.bag = bag
        self.top = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.bag(ids)).square().mean()


class Pair:
    """Make the same model twice: plain with torch's Adagrad, and stored with a RowOptimizer."""

    def __init__(self, store: rowmill.Store, lr: float = 0.3) -> None:
        torch.manual_seed(5)
        self.plain = Model(nn.EmbeddingBag(ROWS, DIM, mode="sum"))
        table = store.table("t", dim=DIM, optimizer=Adagrad(lr=lr), num_rows=ROWS)
        self.stored = Model(EmbeddingBag(ROWS, DIM, mode="sum", table=table))
        self.stored.load_state_dict(self.plain.state_dict())
        self.optimizer = torch.optim.Adagrad(self.plain.bag.parameters(), lr=lr)
        self.rows = RowOptimizer(self.stored)
        self.dense = [
            torch.optim.SGD(model.top.parameters(), lr=0.1) for model in (self.plain, self.stored)
        ]

    def assert_equal(self) -> None:
        ours, theirs = self.stored.state_dict(), self.plain.state_dict()
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6)


def test_gradients_accumulate_over_micro_batches(store: rowmill.Store) -> None:
    pair = Pair(store)
    for _ in range(3):
        for _ in range(4):
            ids = torch.randint(0, ROWS, (6, 2))
            for model in (pair.plain, pair.stored):
                (model(ids) / 4).backward()
            assert store.stats()["tickets"] == 1, "clocks are held from forward to step"
        for optimizer in (pair.optimizer, pair.rows, *pair.dense):
            optimizer.step()
            optimizer.zero_grad()
        pair.assert_equal()
        assert store.stats()["tickets"] == 0
    assert store.stats()["tables"]["t"]["steps"] == 3


def test_clipping_by_global_norm_covers_rows_and_dense_parameters(store: rowmill.Store) -> None:
    pair = Pair(store)
    for _ in range(3):
        ids = torch.randint(0, ROWS, (6, 3))
        norms: list[Tensor] = []
        for model, rows in ((pair.plain, []), (pair.stored, pair.rows.parameters())):
            (10 * model(ids)).backward()
            norms.append(clip_grad_norm_([*model.parameters(), *rows], 0.5))
        torch.testing.assert_close(norms[1], norms[0])
        assert norms[0] > 0.5, "clipping must have an effect"
        for optimizer in (pair.optimizer, pair.rows, *pair.dense):
            optimizer.step()
            optimizer.zero_grad()
        pair.assert_equal()


def test_grad_scaler_unscales_and_skips(store: rowmill.Store) -> None:
    pair = Pair(store)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    for step in range(4):
        ids = torch.randint(0, ROWS, (6, 3))
        overflow = step == 1
        scaler.scale(pair.stored(ids) * (float("inf") if overflow else 1.0)).backward()
        before = pair.stored.state_dict()["bag.weight"]
        scaler.unscale_(pair.rows)
        scaler.step(pair.rows)
        scaler.step(pair.dense[1])
        scaler.update()
        for optimizer in (pair.rows, pair.dense[1]):
            optimizer.zero_grad()
        assert store.stats()["tickets"] == 0
        if overflow:
            assert (pair.stored.state_dict()["bag.weight"] == before).all()
            assert scaler.get_scale() == 512.0
            continue
        pair.plain(ids).backward()
        for optimizer in (pair.optimizer, pair.dense[0]):
            optimizer.step()
            optimizer.zero_grad()
        pair.assert_equal()


def test_schedulers_set_the_learning_rate(store: rowmill.Store) -> None:
    pair = Pair(store)
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
        for optimizer in (pair.optimizer, pair.rows)
    ]
    for _ in range(5):
        ids = torch.randint(0, ROWS, (6, 2))
        for model in (pair.plain, pair.stored):
            model(ids).backward()
        for optimizer in (pair.optimizer, pair.rows, *pair.dense):
            optimizer.step()
            optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        pair.assert_equal()
    assert pair.rows.param_groups[0]["lr"] == pytest.approx(0.003)


def test_step_applies_and_zero_grad_drops_gradients(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0), num_rows=4)
    bag = EmbeddingBag(4, 1, mode="sum", table=table, _weight=torch.zeros(4, 1))
    rows = RowOptimizer([table])
    (stand_in,) = rows.parameters()
    bag(torch.tensor([[1, 3, 3]])).sum().backward()
    assert stand_in.grad is not None
    assert stand_in.grad.tolist() == [[1.0], [2.0]]
    rows.step()
    rows.step()
    assert bag.weight[:, 0].tolist() == [0.0, -1.0, 0.0, -2.0]
    bag(torch.tensor([[1]])).sum().backward()
    rows.zero_grad()
    assert stand_in.grad is None
    rows.step()
    assert bag.weight[1].item() == -1.0
    assert store.stats()["tickets"] == 0
    rows.detach()
    bag(torch.tensor([[1]])).sum().backward()
    assert bag.weight[1].item() == -2.0, "backward updates again"


def test_two_backward_passes_of_one_lookup_accumulate(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0), num_rows=4)
    bag = EmbeddingBag(4, 1, mode="sum", table=table, _weight=torch.zeros(4, 1))
    rows = RowOptimizer(bag)
    loss = bag(torch.tensor([[1]])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    rows.step()
    assert bag.weight[1].item() == -2.0


def test_an_error_in_an_explicit_step_drops_its_gradients(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0), num_rows=4)
    bag = EmbeddingBag(4, 1, mode="sum", table=table, _weight=torch.zeros(4, 1))
    rows = RowOptimizer(bag)
    with store.step():
        for _ in range(2):
            bag(torch.tensor([[1]])).sum().backward()
        rows.step()
    assert bag.weight[1].item() == -2.0

    def stopped() -> None:
        with store.step():
            bag(torch.tensor([[1]])).sum().backward()
            raise KeyError("stop")

    with pytest.raises(KeyError):
        stopped()
    assert store.stats()["tickets"] == 0
    rows.zero_grad()
    with store.step():
        bag(torch.tensor([[1]])).sum().backward()
    assert store.stats()["tickets"] == 1, "held until the update"
    rows.step()
    assert store.stats()["tickets"] == 0
    assert bag.weight[1].item() == -3.0


def test_fused_and_deferred_tables_may_share_a_lookup(store: rowmill.Store) -> None:
    from rowmill.nn import Feature, StackedBags

    tables = [store.table(f"t{i}", dim=1, optimizer=SGD(lr=1.0), num_rows=4) for i in range(2)]
    for table in tables:
        table.put(torch.arange(4), torch.zeros(4, 1))
    bags = StackedBags(Feature(table.name, table) for table in tables)
    rows = RowOptimizer([tables[0]])
    bags(torch.tensor([[1, 1]])).sum().backward()
    assert [table.get([1]).item() for table in tables] == [0.0, -1.0]
    rows.step()
    assert [table.get([1]).item() for table in tables] == [-1.0, -1.0]
    assert store.stats()["tickets"] == 0


def test_learning_rates_come_from_tables_groups_or_the_argument(store: rowmill.Store) -> None:
    a, b, c = (
        store.table(x, dim=1, optimizer=SGD(lr=lr)) for x, lr in zip("abc", (1, 1, 2), strict=False)
    )
    rows = RowOptimizer([a, b, c])
    assert [(g["lr"], len(g["params"])) for g in rows.param_groups] == [(1, 2), (2, 1)]
    rows.detach()
    rows = RowOptimizer([{"params": [a, c], "lr": 0.5}, {"params": [b]}], lr=0.25)
    assert [(g["lr"], len(g["params"])) for g in rows.param_groups] == [(0.5, 2), (0.25, 1)]
    state = rows.state_dict()
    rows.detach()
    rows = RowOptimizer([{"params": [a, c]}, {"params": [b]}], lr=9.0)
    rows.load_state_dict(state)
    assert [g["lr"] for g in rows.param_groups] == [0.5, 0.25]


def test_a_table_has_one_optimizer(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0))
    with pytest.raises(InvalidInput, match="'t' is already updated by a RowOptimizer"):
        RowOptimizer([table, table])
    RowOptimizer([table])
    with pytest.raises(InvalidInput, match="'t' is already updated by a RowOptimizer"):
        RowOptimizer([table])
    with pytest.raises(InvalidInput, match="got no tables"):
        RowOptimizer(nn.Linear(1, 1))
