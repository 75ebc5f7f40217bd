"""Metrics compared with their definitions, computed pair by pair."""

import itertools
import math

import pytest
import torch

from rowmill.ctr.metrics import ClickMetrics


def test_metrics_equal_their_definitions() -> None:
    torch.manual_seed(0)
    logits = torch.randn(200).round(decimals=1)
    labels = (torch.rand(200) < 0.3).float()
    metrics = ClickMetrics()
    for start in range(0, 200, 64):
        metrics.update(logits[start : start + 64], labels[start : start + 64])
    result = metrics.compute()
    clicks, others = logits[labels == 1].tolist(), logits[labels == 0].tolist()
    wins = sum((c > o) + 0.5 * (c == o) for c, o in itertools.product(clicks, others))
    assert result["auc"] == pytest.approx(wins / (len(clicks) * len(others)), abs=1e-6)
    loss = -sum(
        math.log(1 / (1 + math.exp(-z if y else z)))
        for z, y in zip(logits.tolist(), labels.tolist(), strict=True)
    ) / len(logits)
    assert result["logloss"] == pytest.approx(loss, rel=1e-6)
    rate = len(clicks) / 200
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert result["ne"] == pytest.approx(loss / entropy, rel=1e-6)


def test_large_logits_are_ranked_although_their_probabilities_are_equal() -> None:
    metrics = ClickMetrics()
    metrics.update(torch.tensor([20.0, 22.0, 24.0]), torch.tensor([0.0, 0.0, 1.0]))
    assert metrics.compute()["auc"] == 1.0


def test_undefined_metrics_are_none() -> None:
    metrics = ClickMetrics()
    assert metrics.compute() == {"auc": None, "logloss": None, "ne": None}
    metrics.update(torch.tensor([0.0]), torch.tensor([1.0]))
    result = metrics.compute()
    assert (result["auc"], result["ne"]) == (None, None)
    assert result["logloss"] == pytest.approx(math.log(2))


def test_reset_removes_all_rows() -> None:
    metrics = ClickMetrics()
    metrics.update(torch.tensor([5.0, 0.0]), torch.tensor([0.0, 1.0]))
    metrics.reset()
    metrics.update(torch.tensor([5.0, 0.0]), torch.tensor([1.0, 0.0]))
    assert (metrics.rows, metrics.compute()["auc"]) == (2, 1.0)
