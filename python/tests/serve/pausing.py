"""A dense half that takes a given time without work, as one on an accelerator does.

`python -m python.tests.serve.pausing` is `rowmill` in a process that knows its operator.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rowmill.cli.command import main
from rowmill.partition.export import export

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 64
"""Ids are below it."""


@torch.library.custom_op("rowmill_test::pause", mutates_args=())
def pause(values: Tensor, ms: Tensor) -> Tensor:
    """The values, after the longest of the times."""
    time.sleep(1e-3 * float(ms.max()))
    return values.clone()


@pause.register_fake
def _(values: Tensor, ms: Tensor) -> Tensor:
    return torch.empty_like(values)


class Pausing(nn.Module):
    """Sums of two rows, of which a layer makes one score; each request says how long the dense half takes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(ROWS, 2048, mode="sum")
        self.layer = nn.Linear(2048, 1)

    def forward(self, ids: Tensor, ms: Tensor) -> Tensor:
        return pause(self.layer(self.rows(ids)), ms).squeeze(1)


def pausing_call(rows: int, ms: float) -> dict[str, Tensor]:
    """A request whose dense half takes `ms` milliseconds. Its pooled vectors lie in the arena."""
    return {"ids": torch.arange(2 * rows).reshape(rows, 2) % ROWS, "ms": torch.full((rows,), ms)}


def export_pausing(out: Path, seed: int = 4) -> None:
    torch.manual_seed(seed)
    calls = [pausing_call(4, 0.0), pausing_call(2, 0.0)]
    export(Pausing(), calls, out=out, seeds=["rowmill_test::pause"])


if __name__ == "__main__":
    sys.exit(main())
