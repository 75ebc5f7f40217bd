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
    """One row per id, with the arguments and the forward of `torch.nn.Embedding`.

    Training and evaluation differ as in `rowmill.nn.EmbeddingBag`.

    Args:
        num_embeddings: Number of ids, or None for a table over any 64-bit id.
        embedding_dim: D, the dim of the table.
        padding_idx: An id whose vector is 0 and never trained.
        _weight: Weights to put into the table, [num_embeddings, D].
        _freeze: Do not train the rows.
        device: Ignored. Rows live in the store; results are on the device of the ids.
        table: The table with the rows.

    Raises:
        InvalidInput: `max_norm` or `scale_grad_by_freq` is set, or the arguments do not match the table. `sparse` and
            `norm_type` are ignored.
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
        """Look up the rows of int64 or int32 ids of any shape: float32 `[*input.shape, D]`."""
        out = rows_of(self.table, as_long(input), self.padding_idx, training=self.trains_rows)
        return out.reshape(*input.shape, self.embedding_dim).to(input.device)

    def check_weights(self, weights: Tensor) -> None:
        """Raise unless the padding row is 0: the vector of a stored padding id is always 0."""
        padding = self.padding_idx
        if padding is not None and padding < len(weights) and bool(weights[padding].any()):
            raise InvalidInput(
                f"the row of padding_idx {padding} is not 0, but a stored table returns 0 for it: set the row to 0"
            )

    def extra_repr(self) -> str:
        """The main arguments and the table."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, padding_idx={self.padding_idx}, "
            f"table={self.table.name!r}"
        )


def rows_of(table: Table, ids: Tensor, padding_idx: int | None, *, training: bool) -> Tensor:
    """Look up the rows of N int64 ids of any shape: float32 `[N, D]`, on the device of the ids."""
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
