"""Optimizers of rows compared with torch's, over several steps.

Each step calls a module twice, so that gradients of two lookups must be summed, once with repeated ids.
Rows agree to 1e-6 relative: the store sums gradients per row, torch per call, and Adam's bias
correction is computed in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rowmill
from rowmill.nn import EmbeddingBag
from rowmill.optim import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    MomentumSGD,
    RowOptimizer,
    RowwiseAdagrad,
    RowwiseAdam,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from rowmill.optim import OptimizerSpec

ROWS, DIM = 30, 5

Rule = Callable[..., tuple[Tensor, ...]]


class OnTouchedRows(torch.optim.Optimizer):
    """A definition in plain torch for optimizers that torch lacks; rows without a gradient do not change.

    `rule(gradient, weights, *states, step)` returns weights and states after the step, for the touched rows only.
    `states` gives the width and the initial value of each state.
    """

    def __init__(self, params: Any, rule: Rule, *states: tuple[int, float]) -> None:
        super().__init__(params, {})
        self.rule, self.steps = rule, 0
        (self.weight,) = self.param_groups[0]["params"]
        self.states = [torch.full((len(self.weight), width), value) for width, value in states]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        self.steps += 1
        gradient = self.weight.grad
        touched = (gradient != 0).any(dim=1)
        parts = [self.weight, *self.states]
        before = [part[touched] for part in parts]
        after = self.rule(gradient[touched], *before, step=self.steps)
        for part, values in zip(parts, after, strict=True):
            part[touched] = values


def momentum_sgd(g: Tensor, w: Tensor, v: Tensor, *, step: int) -> tuple[Tensor, ...]:
    v = 0.8 * v + g
    return w - 0.02 * v, v


def nesterov(g: Tensor, w: Tensor, v: Tensor, *, step: int) -> tuple[Tensor, ...]:
    v = 0.8 * v + g
    return w - 0.02 * (g + 0.8 * v), v


def rowwise_adagrad(g: Tensor, w: Tensor, s: Tensor, *, step: int) -> tuple[Tensor, ...]:
    s = s + g.square().mean(dim=1, keepdim=True)
    return w - 0.3 / (s.sqrt() + 1e-8) * g, s


def rowwise_adam(g: Tensor, w: Tensor, m: Tensor, v: Tensor, *, step: int) -> tuple[Tensor, ...]:
    m = 0.8 * m + 0.2 * g
    v = 0.95 * v + 0.05 * g.square().mean(dim=1, keepdim=True)
    rate = 0.1 * (1 - 0.95**step) ** 0.5 / (1 - 0.8**step)
    return w - rate * m / (v.sqrt() + 1e-4), m, v


def ftrl(g: Tensor, w: Tensor, z: Tensor, n: Tensor, *, step: int) -> tuple[Tensor, ...]:
    grown = n + g.square()
    z = z + g - (grown.sqrt() - n.sqrt()) / 0.2 * w
    w = -(z - z.sign() * 0.05) / ((0.5 + grown.sqrt()) / 0.2 + 0.3)
    return torch.where(z.abs() <= 0.05, 0.0, w), z, grown


CASES: dict[str, tuple[OptimizerSpec, bool, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": (SGD(lr=0.02), False, lambda p: torch.optim.SGD(p, lr=0.02)),
    "SGD, sparse": (SGD(lr=0.02), True, lambda p: torch.optim.SGD(p, lr=0.02)),
    "MomentumSGD": (
        MomentumSGD(lr=0.02, momentum=0.8),
        False,
        lambda p: OnTouchedRows(p, momentum_sgd, (DIM, 0.0)),
    ),
    "MomentumSGD, nesterov": (
        MomentumSGD(lr=0.02, momentum=0.8, nesterov=True),
        False,
        lambda p: OnTouchedRows(p, nesterov, (DIM, 0.0)),
    ),
    "Adagrad": (
        Adagrad(lr=0.3, initial_accumulator=0.1),
        False,
        lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.1),
    ),
    "Adagrad, sparse": (Adagrad(lr=0.3), True, lambda p: torch.optim.Adagrad(p, lr=0.3)),
    "RowwiseAdagrad": (
        RowwiseAdagrad(lr=0.3, eps=1e-8, initial_accumulator=0.2),
        False,
        lambda p: OnTouchedRows(p, rowwise_adagrad, (1, 0.2)),
    ),
    "SparseAdam": (
        Adam(lr=0.1, beta1=0.8, beta2=0.95),
        True,
        lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95)),
    ),
    "RowwiseAdam": (
        RowwiseAdam(lr=0.1, beta1=0.8, beta2=0.95, eps=1e-4),
        False,
        lambda p: OnTouchedRows(p, rowwise_adam, (DIM, 0.0), (1, 0.0)),
    ),
    "FTRL": (
        FTRL(lr=0.2, beta=0.5, l1=0.05, l2=0.3, initial_accumulator=0.1),
        False,
        lambda p: OnTouchedRows(p, ftrl, (DIM, 0.0), (DIM, 0.1)),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("deferred", [False, True], ids=["fused", "deferred"])
@pytest.mark.parametrize("case", CASES)
def test_rows_equal_those_of_torch(store: rowmill.Store, case: str, deferred: bool) -> None:
    spec, sparse, make = CASES[case]
    torch.manual_seed(3)
    plain = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=sparse)
    table = store.table("t", dim=DIM, optimizer=spec, num_rows=ROWS)
    stored = EmbeddingBag(ROWS, DIM, mode="sum", table=table, _weight=plain.weight.detach())
    optimizer = make(plain.parameters())
    row_optimizer = RowOptimizer(stored) if deferred else None
    for _ in range(6):
        first, second = torch.randint(0, ROWS, (8, 3)), torch.randint(0, 4, (5, 6))
        losses: list[Tensor] = []
        for module in (plain, stored):
            losses.append(module(first).square().sum() + module(second).sin().sum())
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        if row_optimizer is not None:
            row_optimizer.step()
            row_optimizer.zero_grad()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(stored.weight, plain.weight.detach(), rtol=1e-5, atol=1e-6)
    assert store.stats()["tables"]["t"]["steps"] == 6
    assert store.stats()["tickets"] == 0


@pytest.mark.parametrize("case", CASES)
def test_a_store_reopened_during_training_gives_the_same_bits(tmp_path: Path, case: str) -> None:
    spec, ids = CASES[case][0], np.arange(200)

    def trained(folder: str, *parts: range) -> NDArray[np.int32]:
        for steps in parts:
            with rowmill.open(tmp_path / folder, memory="16MiB") as store:
                table = store.table("t", dim=DIM, optimizer=spec)
                assert table.optimizer == spec
                for step in steps:
                    stream = np.random.default_rng(step)
                    gradients = stream.standard_normal((64, DIM), np.float32)
                    table.rmw(stream.integers(0, len(ids), 64), gradients)
                store.checkpoint()
                assert len(table) > 150
                rows = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
        return rows.view(np.int32)

    whole = trained("whole", range(11))
    np.testing.assert_array_equal(trained("parts", range(6), range(6, 11)), whole)


def test_sgd_with_distinct_ids_is_bit_identical_to_torch(store: rowmill.Store) -> None:
    spec, _, make = CASES["SGD"]
    torch.manual_seed(4)
    plain = nn.EmbeddingBag(ROWS, DIM, mode="sum")
    table = store.table("t", dim=DIM, optimizer=spec, num_rows=ROWS)
    stored = EmbeddingBag(ROWS, DIM, mode="sum", table=table, _weight=plain.weight.detach())
    optimizer = make(plain.parameters())
    for _ in range(20):
        ids = torch.randperm(ROWS)[:16].view(16, 1)
        for module in (plain, stored):
            module(ids).sin().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert (stored.weight == plain.weight).all()


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_of_rows_in_every_step_is_bit_identical_to_torch(
    store: rowmill.Store, nesterov: bool
) -> None:
    torch.manual_seed(5)
    plain = nn.EmbeddingBag(ROWS, DIM, mode="sum")
    spec = MomentumSGD(lr=0.02, momentum=0.9, nesterov=nesterov)
    table = store.table("t", dim=DIM, optimizer=spec, num_rows=ROWS)
    stored = EmbeddingBag(ROWS, DIM, mode="sum", table=table, _weight=plain.weight.detach())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.02, momentum=0.9, nesterov=nesterov)
    for _ in range(20):
        ids = torch.randperm(ROWS).view(ROWS, 1)
        for module in (plain, stored):
            module(ids).sin().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert (stored.weight == plain.weight).all()
    velocity = optimizer.state[plain.weight]["momentum_buffer"]
    assert (torch.from_numpy(table.get_state(range(ROWS))) == velocity).all()


def test_l1_of_ftrl_zeroes_the_weights_of_small_gradients(store: rowmill.Store) -> None:
    table = store.table("t", dim=2, optimizer=FTRL(lr=0.1, l1=1.0), num_rows=3)
    for _ in range(10):
        table.rmw([0, 2], np.array([[0.01, 0.5], [-0.5, 0.01]], np.float32))
    born = table.get([1])
    table.get_or_init([1])
    weights = table.get([0, 1, 2])
    assert ((weights == 0) == [[True, False], [False, False], [False, True]]).all()
    assert (weights[1] == born).all()


def test_ftrl_continues_from_put_weights_and_state(store: rowmill.Store) -> None:
    spec = FTRL(lr=0.1, beta=0.5, l1=0.3, l2=0.2, initial_accumulator=0.25)
    forgetful, table = (store.table(name, dim=4, optimizer=spec) for name in "ab")
    w = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    state = table.get_state([7])
    assert state.tolist() == [[0.0] * 4 + [0.25] * 4]
    n = state[:, 4:]
    z = -(spec.beta + np.sqrt(n) + spec.lr * spec.l2) * w - spec.lr * spec.l1 * np.sign(w)
    for each in (forgetful, table):
        each.put([7], w)
    table.put_state([7], np.concatenate([z, n], axis=1))
    for each in (forgetful, table):
        each.rmw([7], np.zeros((1, 4), np.float32))
    np.testing.assert_allclose(table.get([7]), w, rtol=1e-6)
    assert (forgetful.get([7]) == 0).all()


def test_a_learning_rate_set_between_steps_applies_to_the_next_update(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0), num_rows=1)
    bag = EmbeddingBag(1, 1, mode="sum", table=table, _weight=torch.zeros(1, 1))
    bag(torch.tensor([[0]])).sum().backward()
    table.lr = 0.25
    bag(torch.tensor([[0]])).sum().backward()
    assert bag.weight.item() == -1.25
