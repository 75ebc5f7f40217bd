"""A model whose dense half sleeps for a given time: it uses no CPU time, like one on a GPU.

`python -m python.tests.serve.pausing` is the command `rowmill`, with the operator of this model.
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
"""Ids are in [0, ROWS)."""


@torch.library.custom_op("rowmill_test::pause", mutates_args=())
def pause(values: Tensor, ms: Tensor) -> Tensor:
    """A copy of the values, after a sleep of the longest of the times."""
    time.sleep(1e-3 * float(ms.max()))
    return values.clone()


@pause.register_fake
def _(values: Tensor, ms: Tensor) -> Tensor:
    return torch.empty_like(values)


class Pausing(nn.Module):
    """One layer over sums of two rows; each request says how long the dense half sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(ROWS, 2048, mode="sum")
        self.layer = nn.Linear(2048, 1)

    def forward(self, ids: Tensor, ms: Tensor) -> Tensor:
        return pause(self.layer(self.rows(ids)), ms).squeeze(1)


def pausing_call(rows: int, ms: float) -> dict[str, Tensor]:
    """A request whose dense half sleeps `ms` milliseconds. Its pooled vectors are too large to be sent inline."""
    return {"ids": torch.arange(2 * rows).reshape(rows, 2) % ROWS, "ms": torch.full((rows,), ms)}


def export_pausing(out: Path, seed: int = 4, ms: float = 0.0) -> None:
    """Export the model, with examples whose dense half sleeps `ms` milliseconds."""
    torch.manual_seed(seed)
    calls = [pausing_call(4, ms), pausing_call(2, ms)]
    export(Pausing(), calls, out=out, seeds=["rowmill_test::pause"])


if __name__ == "__main__":
    sys.exit(main())
