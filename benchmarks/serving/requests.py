"""Random requests: ids by Zipf's law, scattered over each table."""

import numpy as np
import torch
from torch import Tensor

from benchmarks.serving.shapes import NUMBERS, Shape

ZIPF = 0.99
_SCATTER = 7919
"""Has no factor in common with the numbers of rows, so that popular ids do not lie side by side."""


def requests(shape: Shape, rows: int, *, count: int, seed: int) -> list[dict[str, Tensor]]:
    """Distinct requests of a model.

    Args:
        shape: The model.
        rows: Rows of each table; no multiple of 7919.
        count: How many requests.
        seed: Of ids and numbers.
    """
    generator = np.random.default_rng(seed)
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF
    below = np.cumsum(weights) / weights.sum()
    made: list[dict[str, Tensor]] = []
    for _ in range(count):
        drawn = generator.random((shape.batch, shape.features * shape.ids))
        ranks = np.minimum(np.searchsorted(below, drawn), rows - 1)
        # Another popular id in every table.
        shifts = np.repeat(np.arange(shape.features), shape.ids) * 101
        ids = torch.from_numpy((ranks * _SCATTER + shifts) % rows)
        if shape.kind == "dlrm":
            numbers = generator.random((shape.batch, NUMBERS), dtype=np.float32)
            made.append({"dense": torch.from_numpy(numbers), "ids": ids})
        else:
            made.append({"ids": ids})
    return made
