"""Runs that stop at a step, for tests that go on with them in the same process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from rowmill.train.run import Trainer

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch


class CutOffError(Exception):
    """Stands for a kill in tests that look at one process only."""


@contextmanager
def cut_off(step: int, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """The run of the block raises before the step after this one."""
    original = Trainer.train_step

    def some(trainer: Trainer, batch: Any, rows: Any) -> torch.Tensor:
        if trainer.state.step == step:
            raise CutOffError
        return original(trainer, batch, rows)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", some)
        with pytest.raises(CutOffError):
            yield
