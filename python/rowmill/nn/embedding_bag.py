"""`torch.nn.EmbeddingBag` over a stored table.

Shapes: N ids in all, B bags, L ids per bag of 2-D input, D weights per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from rowmill.errors import InvalidInput
from rowmill.nn.stored import StoredBag, refuse_options, write_weights
from rowmill.ops.lookup import lookup

if TYPE_CHECKING:
    from torch import Tensor

    from rowmill.store.tables import Table


class EmbeddingBag(StoredBag):
    """Sums or means of bags of rows, with the arguments and the forward of `torch.nn.EmbeddingBag`.

    In training mode with gradients enabled, forward is a training get: it creates missing rows and takes
    clocks, and backward updates the rows. Otherwise ids without a row give their initial value, and
    nothing changes.

    Args:
        num_embeddings: Number of ids, or None for a table over any 64-bit id.
        embedding_dim: D, the dim of the table.
        mode: "mean" or "sum".
        _weight: Weights to put into the table, [num_embeddings, D].
        include_last_offset: Offsets have B + 1 entries, the last being N.
        padding_idx: An id that is left out of its bag.
        device: Ignored. Rows live in the store; results are on the device of the ids.
        table: The table with the rows.

    Raises:
        InvalidInput: `max_norm` or `scale_grad_by_freq` is set, `mode` is "max", or the arguments do not match the
            table. `sparse` and `norm_type` are ignored.

    Examples:
        >>> import tempfile, rowmill
        >>> store = rowmill.open(tempfile.mkdtemp(), memory="16MiB")
        >>> table = store.table("words", dim=3, optimizer=rowmill.optim.SGD(lr=0.1))
        >>> bag = EmbeddingBag(None, 3, mode="sum", table=table)
        >>> bag(torch.tensor([[1, 2], [2, 2**40]])).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: Literal["mean", "sum"] = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        table: Table,
    ) -> None:
        super().__init__(table, num_embeddings, embedding_dim)
        refuse_options(max_norm, scale_grad_by_freq, dtype, "")
        if mode not in ("mean", "sum"):
            raise InvalidInput(f'mode must be "mean" or "sum", got {mode!r}')
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.padding_idx = real_padding(padding_idx, num_embeddings)
        if _weight is not None:
            write_weights(table, _weight, num_embeddings)

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Pool bags of ids.

        Args:
            input: int64 or int32 ids, [N] with offsets or [B, L].
            offsets: Start of each bag in 1-D input, [B], or [B + 1] with `include_last_offset`.
            per_sample_weights: float32 in the shape of `input`: weights of a sum; they receive gradients.

        Returns:
            float32 [B, D].
        """
        device = input.device
        if per_sample_weights is not None:
            if self.mode != "sum":
                raise InvalidInput(f'per_sample_weights need mode="sum", got mode={self.mode!r}')
            if per_sample_weights.shape != input.shape:
                raise InvalidInput(
                    f"per_sample_weights must have the shape of the input {list(input.shape)}, "
                    f"got {list(per_sample_weights.shape)}"
                )
            per_sample_weights = per_sample_weights.cpu().float().reshape(-1)
        bags = bag_offsets(input, offsets, self.include_last_offset)
        out = lookup(
            [self.table],
            as_long(input).reshape(-1),
            bags,
            per_sample_weights,
            features=[0],
            means=[self.mode == "mean"],
            paddings=[self.padding_idx],
            bags=bags.shape[0] - 1,
            training=self.trains_rows,
        )
        return out.to(device)

    def extra_repr(self) -> str:
        """The main arguments and the table."""
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}, "
            f"padding_idx={self.padding_idx}, table={self.table.name!r}"
        )


def bag_offsets(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """The B + 1 offsets of bags that are given as `torch.nn.EmbeddingBag` takes them."""
    if input.dim() == 2:
        if offsets is not None:
            raise InvalidInput("offsets go with 1-D input only: each row of 2-D input is a bag")
        return torch.arange(input.shape[0] + 1) * input.shape[1]
    if input.dim() != 1 or offsets is None or offsets.dim() != 1:
        raise InvalidInput(
            f"input must be [B, L], or [N] with 1-D offsets, got {list(input.shape)} and "
            f"{'no offsets' if offsets is None else f'offsets {list(offsets.shape)}'}"
        )
    offsets = as_long(offsets, "offsets")
    if include_last_offset:
        return offsets
    return torch.cat([offsets, offsets.new_full((1,), input.shape[0])])


def as_long(ids: Tensor, name: str = "input") -> Tensor:
    """Convert int64 or int32 ids to int64 on the CPU; raise `InvalidInput` about `name` for other dtypes."""
    if ids.dtype not in (torch.int64, torch.int32):
        raise InvalidInput(f"{name} must be int64 or int32, got {ids.dtype}")
    return ids.cpu().long()


def real_padding(padding_idx: int | None, num_embeddings: int | None) -> int | None:
    """Resolve a padding id as torch does: a negative id counts from the end of the table."""
    if padding_idx is None or num_embeddings is None:
        return padding_idx
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise InvalidInput(
            f"padding_idx must be within num_embeddings ({num_embeddings}), got {padding_idx}"
        )
    return padding_idx % num_embeddings
