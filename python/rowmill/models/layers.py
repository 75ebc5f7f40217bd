"""A stack of linear layers, initialised the way the reference DLRM does."""

import math
from collections.abc import Sequence

from torch import nn


def mlp(inputs: int, widths: Sequence[int], *, relu_last: bool = True) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between them, and after the last one unless told otherwise.

    Weights are normal with variance 2 / (fan in + fan out), biases normal with variance 1 / fan out
    (Naumov et al. 2019, arXiv 1906.00091, and its published code).

    Example:
        >>> [type(layer).__name__ for layer in mlp(13, [64, 16])]
        ['Linear', 'ReLU', 'Linear', 'ReLU']
    """
    layers: list[nn.Module] = []
    for depth, width in enumerate(widths):
        linear = nn.Linear(inputs, width)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / (inputs + width)))
        nn.init.normal_(linear.bias, std=math.sqrt(1 / width))
        layers.append(linear)
        if relu_last or depth + 1 < len(widths):
            layers.append(nn.ReLU())
        inputs = width
    return nn.Sequential(*layers)
