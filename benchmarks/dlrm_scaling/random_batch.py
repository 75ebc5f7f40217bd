"""Random batches of a shape. The samples of all ranks together do not depend on the number of ranks.

Shapes: B samples of this rank, N numeric features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from rowmill.nn.ragged import RaggedBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from benchmarks.dlrm_scaling.shapes import Shape

Skew = Literal["zipf", "uniform"]

ZIPF = 1.05


@dataclass(frozen=True, eq=False)
class RandomBatch:
    """The input of one step.

    Attributes:
        dense: float32 [B, N].
        ids: The ids of every table.
        labels: float32 [B].
    """

    dense: Tensor
    ids: RaggedBatch
    labels: Tensor


def table_names(shape: Shape) -> tuple[str, ...]:
    """Names of tables; features have the same names."""
    return tuple(f"t{number}" for number in range(len(shape.rows)))


def make_batch(shape: Shape, skew: Skew, *, samples: int, part: slice, seed: int) -> RandomBatch:
    """The samples `part` of a batch with `samples` samples in total; equal seeds give equal batches."""
    random = np.random.default_rng(seed)
    dense = random.random((samples, shape.dense), np.float32)[part]
    labels = random.integers(0, 2, samples).astype(np.float32)[part]
    size = len(labels)
    ids: list[NDArray[np.int64]] = []
    for rows, lookups in zip(shape.rows, shape.lookups, strict=True):
        share: NDArray[np.float64] = random.random((samples, lookups))[part]
        ids.append(_drawn(share, rows, skew).reshape(-1))
    lengths = torch.tensor(shape.lookups).repeat_interleave(size)
    values = torch.from_numpy(np.concatenate(ids))
    return RandomBatch(
        torch.from_numpy(dense.copy()),
        RaggedBatch.from_lengths(table_names(shape), values, lengths),
        torch.from_numpy(labels.copy()),
    )


def _drawn(share: NDArray[np.float64], rows: int, skew: Skew) -> NDArray[np.int64]:
    """Map uniform numbers in [0, 1) to ids by the inverse cumulative distribution.

    Zipf uses the continuous form, whose inverse needs no table of 40 million entries. Frequent ids are small numbers; a hash
    assigns them to ranks.
    """
    if skew == "uniform":
        ranks = share * rows
    else:
        power = 1 - ZIPF
        ranks = (1 + share * ((rows + 1) ** power - 1)) ** (1 / power) - 1
    return np.minimum(ranks.astype(np.int64), rows - 1)
