"""The scores that the trainer computes in its test."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from python.tests.train.configs import quiet
from rowmill.gnn.metrics import NodeMetrics
from rowmill.kge import ranking
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from rowmill.config import Config


def click_scores(config: Config, run: Path) -> np.ndarray[Any, Any]:
    """Probabilities of the test rows, `[n, T]`."""
    found: list[Any] = []
    with open_trainer(_resumed(config, run), quiet()) as trainer:
        task: Any = trainer.task
        own = task.predict

        def kept(batch: Any) -> Any:
            found.append(own(batch))
            return found[-1]

        task.predict = kept
        task.test()
    return np.concatenate([logits.sigmoid().reshape(len(logits), -1).numpy() for logits in found])


def triple_scores(
    config: Config, run: Path, monkeypatch: pytest.MonkeyPatch
) -> np.ndarray[Any, Any]:
    """Scores of the right tails of the test triples, `[n]`, as ranking compares them."""
    found: list[Any] = []
    block: Any = getattr(ranking, "_QueryBlock")  # noqa: B009
    own = block.set_answers

    def kept(self: Any, scores: Any) -> None:
        found.append(scores[: len(self.answers)].numpy().copy())
        own(self, scores)

    monkeypatch.setattr(block, "set_answers", kept)
    with open_trainer(_resumed(config, run), quiet()) as trainer:
        trainer.task.test()
    monkeypatch.undo()
    both = np.concatenate(found)
    return both[len(both) // 2 :]


def node_scores(config: Config, run: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    """Class scores of the test nodes, `[n, classes]`."""
    found: list[Any] = []
    own = NodeMetrics.update

    def kept(self: NodeMetrics, scores: Any, labels: Any) -> None:
        found.append(scores.numpy().copy())
        own(self, scores, labels)

    monkeypatch.setattr(NodeMetrics, "update", kept)
    with open_trainer(_resumed(config, run), quiet()) as trainer:
        trainer.task.test()
    monkeypatch.undo()
    return np.concatenate(found)


def _resumed(config: Config, run: Path) -> Config:
    return replace(config, train=replace(config.train, resume=True, out=run))
