"""`torch.nn.Embedding` over a stored table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.errors import InvalidInput
from rowmill.nn.embedding_bag import as_long, real_padding
from rowmill.nn.stored import StoredBag, refuse_options, write_weights
from rowmill.ops.lookup import lookup

if TYPE_CHECKING:
    from torch import Tensor

    from rowmill.store.tables import Table


class Embedding(StoredBag):
    """One row per id; arguments and forward are those of `torch.nn.Embedding`.

    Training and evaluation differ as in `rowmill.nn.EmbeddingBag`. The vector of `padding_idx` is 0.

    Args:
        num_embeddings: Number of ids, or None for a table over any 64-bit id.
        embedding_dim: D, the dim of the table.
        padding_idx: An id whose vector is 0 and never trained.
        _weight: Weights to put into the table, [num_embeddings, D].
        _freeze: Do not train the rows.
        device: Accepted for compatibility: rows live in the store, results where the ids are.
        table: Where the rows live.

    `max_norm` and `scale_grad_by_freq` raise; `sparse` and `norm_type` mean nothing.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        table: Table,
    ) -> None:
        super().__init__(table, num_embeddings, embedding_dim)
        refuse_options(max_norm, scale_grad_by_freq, dtype, "")
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self.frozen = _freeze
        self.padding_idx = real_padding(padding_idx, num_embeddings)
        if _weight is not None:
            self.check_weights(_weight)
            write_weights(table, _weight, num_embeddings)

    def forward(self, input: Tensor) -> Tensor:
        """Rows of ids: int64 or int32 of any shape in, float32 `[*input.shape, D]` out."""
        out = rows_of(self.table, as_long(input), self.padding_idx, training=self.trains_rows)
        return out.reshape(*input.shape, self.embedding_dim).to(input.device)

    def check_weights(self, weights: Tensor) -> None:
        """The padding row must be 0: a stored padding id has no vector."""
        padding = self.padding_idx
        if padding is not None and padding < len(weights) and bool(weights[padding].any()):
            raise InvalidInput(
                f"the row of padding_idx {padding} is not 0, which a stored table cannot show"
            )

    def extra_repr(self) -> str:
        """The arguments a reader wants to see."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, padding_idx={self.padding_idx}, "
            f"table={self.table.name!r}"
        )


def rows_of(table: Table, ids: Tensor, padding_idx: int | None, *, training: bool) -> Tensor:
    """The row of every id, of int64 ids of any shape: float32 `[N, D]`, where the ids are."""
    count = ids.numel()
    out = lookup(
        [table],
        ids.cpu().reshape(-1),
        torch.arange(count + 1),
        None,
        features=[0],
        means=[False],
        paddings=[padding_idx],
        bags=count,
        training=training,
    )
    return out.to(ids.device)
