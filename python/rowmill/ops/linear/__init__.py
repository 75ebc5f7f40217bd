"""The linear layer of the models: torch's oneDNN operator where it is faster than `torch.nn.functional.linear`.

torch multiplies float32 matrices on a CPU with MKL, which uses AVX-512 on Intel's processors only. With AVX-512 of another
maker, oneDNN took 0.6 of the time for the layers of a DLRM, and 0.92 (forward, 1,024 x 415 x 256) on an AMD EPYC of the fourth
generation (Zen 4), which splits such instructions into halves. On an Intel Xeon, forward and backward of a layer took 1.06 to
1.6 times as long with oneDNN, and with AVX2 1.05 to 1.3 times. torch itself calls oneDNN only in compiled graphs, by the operator
that this file calls. Other dtypes and devices, graphs, small products, and builds of torch without the operator run the
definition.

Shapes: B samples, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rowmill.ops.linear import reference

__all__ = ["linear", "onednn_is_faster"]

PRODUCTS_MIN = 1 << 22
"""Least number of multiplications in a layer that repays the 20 us which a call of oneDNN costs. On Zen 4, where oneDNN gains
less, it would be 2^23."""


@cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies large float32 matrices faster than MKL on this processor."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
        and not _mkl_uses_avx512()
    )


def _mkl_uses_avx512() -> bool:
    return torch.backends.mkl.is_available() and _is_of_intel()


def _is_of_intel() -> bool:
    return "GenuineIntel" in Path("/proc/cpuinfo").read_text()


def linear(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """Compute `x W^T + b`, `[B, O]`.

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(1, 3), torch.zeros(1))
        tensor([[3.],
                [3.]])
    """
    if _pays(x_BI, weight_OI, bias_O):
        return _Linear.apply(x_BI, weight_OI, bias_O)  # pyright: ignore[reportReturnType]
    return reference.linear(x_BI, weight_OI, bias_O)


def _pays(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> bool:
    """Whether to call oneDNN. It depends on shapes, processor and build of torch, never on timing, so runs are repeatable."""
    return (
        # This check is first: comparing sizes while exporting would restrict the batch sizes of the graph.
        not torch.compiler.is_compiling()
        and x_BI.dim() == 2
        and x_BI.shape[0] * weight_OI.numel() >= PRODUCTS_MIN
        and not torch.is_autocast_enabled("cpu")
        and all(
            type(tensor) in (Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.dtype == torch.float32
            for tensor in (x_BI, weight_OI, bias_O)
        )
        and onednn_is_faster()
    )


def _product(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x_BI, weight_OI, bias_O, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(x_BI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _product(x_BI, weight_OI, bias_O)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient_BO: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_BI, weight_OI = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: a second derivative may follow.
            return reference.linear_backward(gradient_BO, x_BI, weight_OI)
        x_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        return (
            _product(gradient_BO, weight_OI.t(), None) if x_wanted else None,
            _product(gradient_BO.t(), x_BI.t(), None) if weight_wanted else None,
            gradient_BO.sum(0) if bias_wanted else None,
        )
