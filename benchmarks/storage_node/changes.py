"""The changes of `trainer.py`, and when a pooled answer shows them."""

import numpy as np

TABLE, DIM, ROWS = "changing", 32, 1_000_000
BATCH_ROWS, PERIOD_S = 100, 0.01
"""10,000 rows per second."""
BATCHES = ROWS // BATCH_ROWS
"""Each row changes at most once."""


def ids_of(batch: int) -> np.ndarray:
    """The rows of a batch, which lie in different blocks."""
    return np.arange(BATCH_ROWS) * BATCHES + batch


def stamped(seconds: float) -> np.ndarray:
    """The weights of a row that changes `seconds` after the start."""
    row = np.zeros(DIM, np.float32)
    row[:3] = int(seconds), seconds % 1, 1
    return row


def changed_at(pooled: np.ndarray) -> float | None:
    """Seconds from the start to the change of a batch, from the sum of its rows; `None` if some of them are old."""
    whole, rest, changed = map(float, pooled[:3])
    return (whole + rest) / BATCH_ROWS if changed == BATCH_ROWS else None
