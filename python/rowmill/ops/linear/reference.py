"""The linear layer in plain torch: the definition that the other implementation matches.

Shapes: B samples, I inputs, O outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor


def linear(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """`x W^T + b`, `[B, O]`."""
    return functional.linear(x_BI, weight_OI, bias_O)


def linear_backward(
    gradient_BO: Tensor, x_BI: Tensor, weight_OI: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input, weight and bias from the gradient of the output; itself differentiable."""
    return gradient_BO.mm(weight_OI), gradient_BO.t().mm(x_BI), gradient_BO.sum(0)
