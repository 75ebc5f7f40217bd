"""Copies of rows without optimizer state, for a bundle.

A missing row is initialized from the seed of its store, the number of its table and its id. So a copy has the seed of its source,
and its tables in the same order.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch

import rowmill
from rowmill import init
from rowmill.optim import SGD

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from rowmill.store import Store

_MEMORY = "256MiB"
_CHUNK_ROWS = 16_384

_UNTRAINED = {"kind": "sgd", "lr": 0.0}
"""An optimizer without state, as the binding takes it."""


def copy_store(source: Store, folder: Path) -> int:
    """Copy all tables of a store to a new one; returns the number of rows.

    The source is scanned: rows that change meanwhile are copied before or after their change.
    """
    count = 0
    with closing(rowmill.open(folder, memory=_MEMORY, seed=source.core.seed)) as target:
        for name in source.table_names():
            table = source.open_table(name)
            target.core.table(
                name,
                dim=table.dim,
                dtype=table.dtype,
                optimizer=_UNTRAINED,
                initializer=table.core.initializer,
                staleness_bound=0,
                dense_rows=table.num_rows,
                eviction=None,
                admission=None,
            )
            copy = target.open_table(name)
            for ids, weights in table.scan(batch_rows=_CHUNK_ROWS):
                copy.put(ids, weights)
                count += len(ids)
        target.checkpoint()
    return count


def store_weights(weights: Mapping[str, Tensor], folder: Path) -> int:
    """Put matrices of weights, each [rows, D], into the tables of a new store; returns the number of rows."""
    count = 0
    with closing(rowmill.open(folder, memory=_MEMORY)) as target:
        for name, matrix in weights.items():
            table = target.table(
                name,
                dim=matrix.shape[1],
                optimizer=SGD(lr=0.0),
                initializer=init.Zeros(),
                num_rows=matrix.shape[0],
            )
            for start in range(0, matrix.shape[0], _CHUNK_ROWS):
                rows = matrix[start : start + _CHUNK_ROWS].detach().float().contiguous()
                table.put(torch.arange(start, start + len(rows)), rows)
            count += matrix.shape[0]
        target.checkpoint()
    return count
