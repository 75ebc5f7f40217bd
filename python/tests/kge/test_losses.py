"""Losses against their definitions, computed query by query from probabilities instead of logits."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch import Tensor

from rowmill.kge import dense_softmax, logistic, penalty, self_adversarial, softmax

B, C = 4, 6
RIGHT = {0: [1], 1: [0, 5], 2: [3, 4, 2], 3: [5]}


def scores() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(B, C, dtype=torch.float64, requires_grad=True)


def right() -> tuple[Tensor, Tensor]:
    pairs = [(query, column) for query, columns in RIGHT.items() for column in columns]
    queries, columns = zip(*pairs, strict=True)
    return torch.tensor(queries), torch.tensor(columns)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_softmax_target_is_uniform_over_right_answers(smoothing: float) -> None:
    given = scores()
    total = 0.0
    for query, columns in RIGHT.items():
        chances = given[query].softmax(0).tolist()
        for column in range(C):
            label = smoothing / C + (1 - smoothing) * (column in columns) / len(columns)
            total -= label * math.log(chances[column])
    loss = softmax(given, *right(), smoothing=smoothing)
    assert loss.item() == pytest.approx(total / B)


def test_softmax_of_one_right_answer_is_cross_entropy() -> None:
    given, columns = scores(), torch.tensor([1, 0, 3, 5])
    loss = softmax(given, torch.arange(B), columns)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(given, columns))


def test_logistic_sums_over_all_candidates() -> None:
    given = scores()
    total = 0.0
    for query, columns in RIGHT.items():
        for column in range(C):
            chance = float(given.detach()[query, column].sigmoid())
            total -= math.log(chance if column in columns else 1 - chance)
    assert logistic(given, *right()).item() == pytest.approx(total / B)


def test_self_adversarial_weights_are_the_softmax_of_wrong_scores() -> None:
    given, columns = scores(), torch.tensor([1, 0, 3, 5])
    total = 0.0
    for query, column in enumerate(columns.tolist()):
        wrong = [other for other in range(C) if other != column]
        weights = (2.0 * given.detach()[query, wrong]).softmax(0).tolist()
        total -= math.log(float(given.detach()[query, column].sigmoid()))
        for weight, other in zip(weights, wrong, strict=True):
            total -= weight * math.log(float((-given.detach()[query, other]).sigmoid()))
    loss = self_adversarial(given, torch.arange(B), columns, temperature=2.0)
    assert loss.item() == pytest.approx(total / 2 / B)
    # The weights are constants, so the gradient of a wrong score is its weight times its sigmoid.
    loss.backward()
    assert given.grad is not None
    weights = (2.0 * given.detach()[0, [0, 2, 3, 4, 5]]).softmax(0)
    expected = weights * given.detach()[0, [0, 2, 3, 4, 5]].sigmoid() / 2 / B
    torch.testing.assert_close(given.grad[0, [0, 2, 3, 4, 5]], expected)


@pytest.mark.parametrize("loss", [softmax, logistic, self_adversarial])
def test_a_score_of_minus_infinity_excludes_a_candidate(loss) -> None:
    queries, columns = torch.arange(B), torch.zeros(B, dtype=torch.int64)
    given = scores()
    fewer = loss(given[:, :4], queries, columns)
    masked = given.masked_fill(torch.arange(C) >= 4, -torch.inf)
    assert loss(masked, queries, columns).item() == pytest.approx(fewer.item())
    loss(masked, queries, columns).backward()
    assert given.grad is not None
    assert bool(given.grad.isfinite().all())


def test_penalties_are_sums_of_powers() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
    assert float(penalty(rows, 2)) == 14.0
    assert float(penalty(rows, 3)) == 36.0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("block_floats", [1, 3 * C, 1 << 22])
def test_the_dense_softmax_is_the_softmax_of_products(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, block_floats: int
) -> None:
    module = importlib.import_module("rowmill.kge.chunked_softmax")
    monkeypatch.setattr(module, "_BLOCK_FLOATS", block_floats)
    torch.manual_seed(4)
    query = torch.randn(B, 5, requires_grad=True)
    candidates = torch.randn(C, 5, requires_grad=True)
    found: list[list[Tensor]] = []
    for loss in (
        dense_softmax(query, candidates, *right(), smoothing=smoothing),
        softmax(query @ candidates.t(), *right(), smoothing=smoothing),
    ):
        gradients = torch.autograd.grad(3.0 * loss, [query, candidates])
        found.append([loss.detach(), *gradients])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


def test_the_dense_softmax_is_the_same_with_several_blocks() -> None:
    """Sizes with more than one block, at which `linear` uses the faster library."""
    torch.manual_seed(5)
    query = torch.randn(600, 16, requires_grad=True)
    candidates = torch.randn(9000, 16, requires_grad=True)
    queries, columns = torch.arange(600), torch.randint(9000, (600,))
    losses = [
        dense_softmax(query, candidates, queries, columns),
        softmax(query @ candidates.t(), queries, columns),
    ]
    ours, expected = (torch.autograd.grad(loss, [query, candidates]) for loss in losses)
    torch.testing.assert_close(losses[0], losses[1])
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)


def test_the_dense_softmax_in_autocast_is_close_and_returns_float32() -> None:
    torch.manual_seed(6)
    query = torch.randn(300, 32, requires_grad=True)
    candidates = torch.randn(500, 32, requires_grad=True)
    queries, columns = torch.arange(300), torch.randint(500, (300,))
    exact = dense_softmax(query, candidates, queries, columns)
    with torch.autocast("cpu", torch.bfloat16):
        near = dense_softmax(query, candidates, queries, columns)
    assert 0 < (near - exact).abs() < 1e-2 * exact
    pairs = [torch.autograd.grad(loss, [query, candidates]) for loss in (near, exact)]
    for one, other in zip(*pairs, strict=True):
        assert one.dtype == torch.float32
        assert 0 < (one - other).norm() < 2e-2 * other.norm()


def test_large_scores_do_not_overflow() -> None:
    query, candidates = torch.full((1, 1), 200.0), torch.tensor([[1.0], [-1.0]])
    loss = dense_softmax(query, candidates, torch.tensor([0]), torch.tensor([1]))
    assert loss.item() == 400.0
