"""Dropout: the share of zeros, an unchanged mean, independent positions, and bit-identical results for equal seeds."""

from __future__ import annotations

import pytest
import torch

from rowmill.nn.dropout import dropout, named_dropout


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_fraction_is_zero_and_the_mean_is_unchanged(share: float) -> None:
    torch.manual_seed(1)
    dropped = torch.stack([dropout(torch.ones(7, 3), share) for _ in range(4_000)])
    rates = (dropped == 0).float().mean(dim=0)
    assert rates.min() > share - 0.05
    assert rates.max() < share + 0.05
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - share)], rel=1e-3)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.05)
    # Positions are uncorrelated, within one random word and across two.
    correlation = torch.corrcoef(dropped.reshape(4_000, -1).T)
    assert (correlation - torch.eye(21)).abs().max() < 0.1


def test_gradients_are_zero_where_inputs_were_dropped() -> None:
    weights = torch.ones(1000, requires_grad=True)
    dropped = dropout(weights, 0.3)
    dropped.sum().backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, dropped.detach())


def test_dropout_depends_on_torchs_random_stream() -> None:
    def drawn() -> torch.Tensor:
        return dropout(torch.ones(100), 0.5)

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(drawn(), first)


def test_rates_0_and_close_to_1() -> None:
    weights = torch.ones(50)
    assert dropout(weights, 0.0) is weights
    assert dropout(weights, 1 - 1e-9).isfinite().all()


def test_dropout_acts_only_in_training() -> None:
    weights = torch.ones(50)
    assert dropout(weights, 0.5, training=False) is weights
    assert not torch.equal(dropout(weights, 0.5, training=True), weights)


def test_some_rows_of_a_matrix_are_dropped_as_in_the_matrix() -> None:
    weights = torch.randn(11, 3)
    torch.manual_seed(5)
    whole = [dropout(weights, 0.4), dropout(weights, 0.4)]
    rows = torch.tensor([1, 2, 9])
    torch.manual_seed(5)
    some = [dropout(weights[rows], 0.4, rows=rows, of=11) for _ in range(2)]
    assert all(torch.equal(a, b[rows]) for a, b in zip(some, whole, strict=True))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_named_dropout_is_random_and_depends_on_names_alone(share: float) -> None:
    torch.manual_seed(1)
    names = torch.tensor([5, -7, 1 << 40, 6, 0, 1])
    dropped = torch.stack([named_dropout(torch.ones(6, 7), share, names) for _ in range(4_000)])
    rates = (dropped == 0).float().mean(dim=0)
    assert rates.min() > share - 0.05
    assert rates.max() < share + 0.05
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.05)
    correlation = torch.corrcoef(dropped.reshape(4_000, -1).T)
    assert (correlation - torch.eye(42)).abs().max() < 0.1

    weights = torch.randn(6, 7)
    torch.manual_seed(2)
    whole = named_dropout(weights, share, names)
    some = torch.tensor([4, 1])
    torch.manual_seed(2)
    assert torch.equal(named_dropout(weights[some], share, names[some]), whole[some])
    assert named_dropout(weights, share, names, training=False) is weights
