"""Batches of tensors in a fixed order, from any row on.

Shapes: B rows of a batch, N numeric features, F id features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rowmill.data.block import Block
from rowmill.data.features import IdWay, transform
from rowmill.data.source import Source


@dataclass(frozen=True)
class Batch:
    """Contiguous tensors: dense ``[B, N]`` float32, ids ``[B, F]`` int64, labels ``[B]`` float32.

    ``stop`` is the row after the last one: where to go on.
    """

    dense: Tensor
    ids: Tensor
    labels: Tensor
    stop: int

    def __len__(self) -> int:
        return len(self.labels)


def batches(source: Source, way: IdWay, *, start: int, stop: int, batch: int) -> Iterator[Batch]:
    """Rows ``start <= row < stop`` in batches of ``batch``; the last one may be smaller.

    The same rows fall into the same batches whichever multiple of ``batch`` a run starts from, so a run that goes
    on from ``Batch.stop`` sees what it would have seen.
    """
    rest: Block | None = None
    row = start
    for raw in source.blocks(start, stop):
        block = transform(raw, way)
        if rest is not None:
            block = Block(
                np.concatenate([rest.labels, block.labels]),
                np.concatenate([rest.dense, block.dense]),
                np.concatenate([rest.ids, block.ids]),
            )
        whole = len(block) - len(block) % batch
        for lo in range(0, whole, batch):
            row += batch
            yield _tensors(block, lo, lo + batch, row)
        rest = Block(block.labels[whole:], block.dense[whole:], block.ids[whole:])
    if rest is not None and len(rest):
        yield _tensors(rest, 0, len(rest), row + len(rest))


def _tensors(block: Block, lo: int, hi: int, stop: int) -> Batch:
    return Batch(
        torch.from_numpy(block.dense[lo:hi]),
        torch.from_numpy(block.ids[lo:hi]),
        torch.from_numpy(block.labels[lo:hi]),
        stop,
    )
