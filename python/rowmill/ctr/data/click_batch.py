"""Batches of tensors from a click log, in its order, starting at any row.

Shapes: B rows per batch, N numeric features, S id columns, T tasks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rowmill.ctr.data.features import IdWay, transform
from rowmill.ctr.data.row_block import RowBlock
from rowmill.ctr.data.source import Source


@dataclass(frozen=True)
class ClickBatch:
    """Contiguous tensors: dense ``[B, N]`` float32, ids ``[B, S]`` int64, labels ``[B]`` float32.

    ``stop`` is the row after the last one, where the next batch starts. With several tasks labels are ``[B, T]``. With
    histories, ``lengths`` ``[B]`` int64 holds the number of ids in the history of each row.
    """

    dense: Tensor
    ids: Tensor
    labels: Tensor
    stop: int
    lengths: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        """Bytes of the batch's tensors."""
        lengths = 0 if self.lengths is None else self.lengths.nbytes
        return self.dense.nbytes + self.ids.nbytes + self.labels.nbytes + lengths


def batches(
    source: Source, way: IdWay, *, start: int, stop: int, batch: int
) -> Iterator[ClickBatch]:
    """Rows ``start <= row < stop`` in batches of ``batch``; the last one may be smaller.

    From any ``start`` that is a multiple of ``batch``, the batches consist of the same rows. So a run that resumes at
    ``ClickBatch.stop`` sees the same batches as an uninterrupted run.
    """
    rest: RowBlock | None = None
    row = start
    for raw in source.blocks(start, stop):
        block = transform(raw, way)
        if rest is not None:
            block = rest.followed_by(block)
        whole = len(block) - len(block) % batch
        for lo in range(0, whole, batch):
            row += batch
            yield _tensors(block, lo, lo + batch, row)
        rest = block.rows(whole, len(block))
    if rest is not None and len(rest):
        yield _tensors(rest, 0, len(rest), row + len(rest))


def _tensors(block: RowBlock, lo: int, hi: int, stop: int) -> ClickBatch:
    part = block.rows(lo, hi)
    return ClickBatch(
        torch.from_numpy(part.dense),
        torch.from_numpy(part.ids),
        torch.from_numpy(part.labels),
        stop,
        None if part.lengths is None else torch.from_numpy(part.lengths),
    )
