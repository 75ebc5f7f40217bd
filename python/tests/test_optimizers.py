"""Rows updated in the store against rows updated by torch, over several steps.

Each step calls a module twice (so that gradients of two lookups must add up), once with repeated ids.
Rows agree to 1e-6 relative: the store sums gradients per row, torch per call, and Adam's bias
correction is computed in another order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from rowmill.nn import EmbeddingBag
from rowmill.optim import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad

if TYPE_CHECKING:
    from collections.abc import Callable

    import rowmill
    from rowmill.optim import OptimizerSpec

ROWS, DIM = 30, 5


class TorchRowwiseAdagrad(torch.optim.Optimizer):
    """The definition, on dense gradients: one accumulator per row, of the mean square."""

    def __init__(self, params: Any, lr: float, eps: float, initial: float) -> None:
        super().__init__(params, {"lr": lr, "eps": eps, "initial": initial})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["sum"] = torch.full((len(weight), 1), group["initial"])
                state["sum"] += weight.grad.square().mean(dim=1, keepdim=True)
                scale = group["lr"] / (state["sum"].sqrt() + group["eps"])
                weight -= torch.where(weight.grad == 0, 0.0, scale * weight.grad)


CASES: dict[str, tuple[OptimizerSpec, bool, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": (SGD(lr=0.02), False, lambda p: torch.optim.SGD(p, lr=0.02)),
    "SGD, sparse": (SGD(lr=0.02), True, lambda p: torch.optim.SGD(p, lr=0.02)),
    "Adagrad": (
        Adagrad(lr=0.3, initial_accumulator=0.1),
        False,
        lambda p: torch.optim.Adagrad(p, lr=0.3, initial_accumulator_value=0.1),
    ),
    "Adagrad, sparse": (Adagrad(lr=0.3), True, lambda p: torch.optim.Adagrad(p, lr=0.3)),
    "RowwiseAdagrad": (
        RowwiseAdagrad(lr=0.3, eps=1e-8, initial_accumulator=0.2),
        False,
        lambda p: TorchRowwiseAdagrad(p, lr=0.3, eps=1e-8, initial=0.2),
    ),
    "SparseAdam": (
        Adam(lr=0.1, beta1=0.8, beta2=0.95),
        True,
        lambda p: torch.optim.SparseAdam(p, lr=0.1, betas=(0.8, 0.95)),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("deferred", [False, True], ids=["fused", "deferred"])
@pytest.mark.parametrize("case", CASES)
def test_rows_follow_torch(store: rowmill.Store, case: str, deferred: bool) -> None:
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


def test_sgd_on_rows_met_once_per_step_is_equal_to_the_last_bit(store: rowmill.Store) -> None:
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


def test_a_rate_set_between_steps_is_the_rate_of_the_next_update(store: rowmill.Store) -> None:
    table = store.table("t", dim=1, optimizer=SGD(lr=1.0), num_rows=1)
    bag = EmbeddingBag(1, 1, mode="sum", table=table, _weight=torch.zeros(1, 1))
    bag(torch.tensor([[0]])).sum().backward()
    table.lr = 0.25
    bag(torch.tensor([[0]])).sum().backward()
    assert bag.weight.item() == -1.25
