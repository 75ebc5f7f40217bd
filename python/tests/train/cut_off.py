"""Runs that stop at a step, for tests that resume them in the same process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rowmill.train.run import Trainer

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch


class CutOffError(Exception):
    """Simulates a kill, for tests in one process."""


@contextmanager
def cut_off(step: int, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """In this context, a run raises before the step after the given one."""
    original = Trainer.train_step

    def some(trainer: Trainer, batch: Any, rows: Any) -> torch.Tensor:
        if trainer.state.step == step:
            raise CutOffError
        return original(trainer, batch, rows)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", some)
        with pytest.raises(CutOffError):
            yield
