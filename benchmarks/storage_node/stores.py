"""Stores that nodes serve. They are made once, and kept."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rowmill
from benchmarks.storage_node.shape import DIM, ROW_BYTES, TABLES, names

FIRST_LONG_ID = 1 << 40
"""Ids of the hashed tables start here, so that a host must send 8 bytes of each."""
_CHUNK = 100_000


def row_bytes(rows: int) -> int:
    """Bytes of all rows of RM1 with `rows` rows per table."""
    return TABLES * rows * ROW_BYTES


class Stores:
    """The stores of a folder.

    Args:
        folder: Where they are kept.
        seed: Of their rows.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self._seed = seed

    def dense(self, rows: int) -> Path:
        """RM1, with every row of ids in [0, rows) present."""

        def make(path: Path) -> None:
            rng = np.random.default_rng(self._seed)
            with rowmill.open(path, memory=2 * row_bytes(rows) + (64 << 20)) as store:
                for name in names():
                    sgd = rowmill.optim.SGD(lr=0.01)
                    table = store.table(name, dim=DIM, optimizer=sgd, num_rows=rows)
                    for first in range(0, rows, _CHUNK):
                        ids = np.arange(first, min(rows, first + _CHUNK))
                        table.put(ids, rng.random((len(ids), DIM), dtype=np.float32))

        return self._made(f"dense-{rows}-{self._seed}", make)

    def hashed(self) -> Path:
        """Tables of RM1 for any 64-bit ids, without rows: every id reads as its initial weights."""

        def make(path: Path) -> None:
            with rowmill.open(path, memory="64MiB", seed=self._seed) as store:
                for name in names():
                    store.table(name, dim=DIM, optimizer=rowmill.optim.SGD(lr=0.01))
                store.checkpoint()

        return self._made(f"hashed-{self._seed}", make)

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        path, draft = self.folder / name, self.folder / f"{name}.new"
        if not path.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            make(draft)
            draft.rename(path)
        return path
