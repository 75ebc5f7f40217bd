"""The dot interaction of DLRM: the dot products of all pairs of dense and pooled vectors.

float32 and bfloat16 on the CPU run a kernel of rowmill, as the operator `rowmill::interaction`, which torch.export and
torch.compile can record. Other dtypes and devices run the definition in plain torch, as does every second derivative.

Shapes: B samples, F pooled vectors of a sample, D floats of a vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rowmill.errors import InvalidInput
from rowmill.ops.interaction import cpu, reference
from rowmill.ops.interaction.reference import dot_interaction

__all__ = ["dot_interaction", "interaction"]

torch.library.define("rowmill::interaction", "(Tensor dense, Tensor pooled) -> Tensor")
torch.library.define(
    "rowmill::interaction_backward",
    "(Tensor gradient, Tensor dense, Tensor pooled) -> (Tensor, Tensor)",
)
torch.library.impl("rowmill::interaction", "CPU", cpu.interaction)
torch.library.impl("rowmill::interaction_backward", "CPU", cpu.interaction_backward)


@torch.library.register_fake("rowmill::interaction")  # pyright: ignore[reportUntypedFunctionDecorator]
def _interaction_shape(dense: Tensor, pooled: Tensor) -> Tensor:
    batch, features, dim = pooled.shape
    return dense.new_empty(batch, dim + features * (features + 1) // 2)


@torch.library.register_fake("rowmill::interaction_backward")  # pyright: ignore[reportUntypedFunctionDecorator]
def _backward_shapes(gradient: Tensor, dense: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
    return dense.new_empty(dense.shape), pooled.new_empty(pooled.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    dense, pooled = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: a second derivative may follow.
        return reference.interaction_backward(gradient, dense, pooled)
    return torch.ops.rowmill.interaction_backward(gradient, dense, pooled)


torch.library.register_autograd("rowmill::interaction", _backward, setup_context=_keep_inputs)


def interaction(dense_BD: Tensor, pooled_BFD: Tensor) -> Tensor:
    """Concatenate each sample's dense vector and the dot products of all pairs of its vectors.

    Args:
        dense_BD: The dense vector of every sample, `[B, D]`.
        pooled_BFD: The pooled vectors of every sample, `[B, F, D]`.

    Returns:
        `[B, D + F (F + 1) / 2]` in the inputs' dtype; pairs in the order of `dot_interaction`.

    Raises:
        InvalidInput: The shapes do not match.

    Example:
        >>> dense, pooled = torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 1.0], [0.0, 3.0]]])
        >>> interaction(dense, pooled)
        tensor([[1., 0., 2., 0., 3.]])
    """
    if pooled_BFD.dim() != 3 or dense_BD.shape != (pooled_BFD.shape[0], pooled_BFD.shape[2]):
        raise InvalidInput(
            "dense and pooled vectors must be [B, D] and [B, F, D], got "
            f"{list(dense_BD.shape)} and {list(pooled_BFD.shape)}"
        )
    kinds = {(tensor.device.type, tensor.dtype) for tensor in (dense_BD, pooled_BFD)}
    if kinds not in ({("cpu", torch.float32)}, {("cpu", torch.bfloat16)}):
        return reference.interaction(dense_BD, pooled_BFD)
    return torch.ops.rowmill.interaction(dense_BD, pooled_BFD)
