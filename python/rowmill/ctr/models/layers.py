"""A stack of linear layers, initialised as in the reference DLRM."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from rowmill.ops.linear import linear


class Linear(nn.Linear):
    """`torch.nn.Linear` with a bias, computed by `rowmill.ops.linear`: the faster of MKL and oneDNN on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        """`[B, inputs]` to `[B, outputs]`."""
        return linear(input, self.weight, self.bias)


def mlp(inputs: int, widths: Sequence[int], *, relu_last: bool = True) -> nn.Sequential:
    """Linear layers of the given widths, with ReLU between them and, if `relu_last`, after the last one.

    Weights are normal with variance 2 / (fan in + fan out), biases normal with variance 1 / fan out
    (Naumov et al. 2019, arXiv 1906.00091, and its published code).

    Example:
        >>> [type(layer).__name__ for layer in mlp(13, [64, 16])]
        ['Linear', 'ReLU', 'Linear', 'ReLU']
    """
    layers: list[nn.Module] = []
    for depth, width in enumerate(widths):
        layer = Linear(inputs, width)
        nn.init.normal_(layer.weight, std=math.sqrt(2 / (inputs + width)))
        nn.init.normal_(layer.bias, std=math.sqrt(1 / width))
        layers.append(layer)
        if relu_last or depth + 1 < len(widths):
            # In place is safe: the backward pass of a linear layer needs its inputs, not its outputs.
            layers.append(nn.ReLU(inplace=True))
        inputs = width
    return nn.Sequential(*layers)
