"""Optimizers of torch for bfloat16 weights whose lower halves are optimizer state: Split-SGD-BF16 for the dense half.

A weight and its lower half are one 32-bit float, which an update puts together, changes and takes apart again (Kalamkar et
al. 2020, "Optimizing Deep Learning Recommender Systems' Training on CPU Cluster Architectures"). So the same gradients
leave the bits that the optimizer of torch of the same kind leaves in float32 weights, in as many bytes; what the model
computes with are the upper halves.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn

from rowmill import _core
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["SplitAdagrad", "SplitSGD"]

CHUNK = 1 << 18
"""Weights that are put together at a time: all that an update takes beyond its state, 1 MiB for each tensor in it."""


class _SplitOptimizer(torch.optim.Optimizer):
    """What is done to whole weights is said by `_update`."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take more weights: those of float32 become bfloat16 here and now, and keep all bits."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for weight in group["params"]:
            if weight not in self.state:
                self.state[weight] = {"lower": _split(weight), **self._born(weight, group)}

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every weight that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, weight.grad, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, to the last bit."""
        super().load_state_dict(state_dict)
        # torch makes state of the weights' type; ours has types of its own.
        for mine, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for weight, number in zip(mine["params"], saved["params"], strict=True):
                state = state_dict["state"][number]
                self.state[weight] = {
                    name: value.to(weight.device, copy=True) for name, value in state.items()
                }

    def whole(self, weight: nn.Parameter) -> Tensor:
        """The weight with its lower half, as float32."""
        out = torch.empty_like(weight, dtype=torch.float32)
        _join(_halves(weight), self.state[weight]["lower"].view(-1), out.view(-1))
        return out

    def _born(self, weight: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
        """State beside the lower halves, of the shape of the weight."""
        return {}

    @abstractmethod
    def _update(
        self, whole: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Change some whole weights and their state."""

    def _step(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise InvalidInput("split optimizers take dense gradients, got a sparse one")
        upper, gradient = _halves(weight), gradient.reshape(-1)
        state = {name: value.view(-1) for name, value in self.state[weight].items()}
        whole = torch.empty(min(CHUNK, upper.numel()), dtype=torch.float32, device=weight.device)
        for start in range(0, upper.numel(), CHUNK):
            stop = min(start + CHUNK, upper.numel())
            part = {name: value[start:stop] for name, value in state.items()}
            chunk = whole[: stop - start]
            _join(upper[start:stop], part["lower"], chunk)
            self._update(chunk, gradient[start:stop].float(), part, group)
            _cut(chunk, upper[start:stop], part["lower"])


class SplitSGD(_SplitOptimizer):
    """`w -= lr * g`, as `torch.optim.SGD`, on bfloat16 weights and their lower halves. Two bytes of state per weight.

    Args:
        params: Weights, or groups of them. Those of float32 become bfloat16 when the optimizer is made and keep their
            bits; those of bfloat16 begin with lower halves of 0. Make it before what copies or flattens weights.
        lr: Learning rate.

    Example:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = SplitSGD(model.parameters(), lr=0.1)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     loss = model(torch.ones(2, 3)).float().square().mean()
        >>> loss.backward()
        >>> optimizer.step()
        >>> model.weight.dtype, optimizer.whole(model.weight).dtype
        (torch.bfloat16, torch.float32)
    """

    def __init__(
        self, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], *, lr: float
    ) -> None:
        super().__init__(params, {"lr": _rate(lr)})

    def _step(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if weight.device.type != "cpu" or gradient.is_sparse:
            super()._step(weight, gradient, group)
            return
        # One pass over 10 bytes of each weight; the definition, in plain torch, takes several over more.
        _core.split_sgd(
            _halves(weight).numpy(),
            self.state[weight]["lower"].view(-1).numpy(),
            gradient.reshape(-1).contiguous().view(torch.int16).numpy(),
            group["lr"],
            torch.get_num_threads(),
        )

    def _update(
        self, whole: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        whole.add_(gradient, alpha=-group["lr"])


class SplitAdagrad(_SplitOptimizer):
    """`s += g * g; w -= lr * g / (sqrt(s) + eps)`, as `torch.optim.Adagrad`, likewise. Six bytes of state per weight.

    Args:
        params: As for `SplitSGD`.
        lr: Learning rate.
        eps: Added to the root.
        initial_accumulator: What s begins with.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        eps: float = 1e-10,
        initial_accumulator: float = 0.0,
    ) -> None:
        defaults = {"lr": _rate(lr), "eps": eps, "initial_accumulator": initial_accumulator}
        super().__init__(params, defaults)

    def _born(self, weight: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
        value = group["initial_accumulator"]
        return {"sum": torch.full_like(weight, value, dtype=torch.float32)}

    def _update(
        self, whole: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        state["sum"].addcmul_(gradient, gradient)
        root = state["sum"].sqrt().add_(group["eps"])
        whole.addcdiv_(gradient, root, value=-group["lr"])


def _rate(lr: float) -> float:
    if lr < 0:
        raise InvalidInput(f"lr must be >= 0, got {lr}")
    return lr


@torch.no_grad()
def _split(weight: nn.Parameter) -> Tensor:
    """Make a weight bfloat16; its lower halves."""
    if weight.dtype not in (torch.float32, torch.bfloat16) or not weight.is_contiguous():
        raise InvalidInput(
            f"split optimizers take contiguous weights of float32 or bfloat16, got {weight.dtype} of strides "
            f"{weight.stride()}"
        )
    lower = torch.zeros_like(weight, dtype=torch.int16)
    if weight.dtype == torch.float32:
        upper = torch.empty_like(weight, dtype=torch.bfloat16)
        _cut(weight.detach().view(-1), upper.view(-1).view(torch.int16), lower.view(-1))
        weight.data, weight.grad = upper, None
    return lower


def _halves(weight: nn.Parameter) -> Tensor:
    return weight.detach().view(-1).view(torch.int16)


def _join(upper: Tensor, lower: Tensor, out: Tensor) -> None:
    """Write the floats of these halves; both machines and files of ours put the lower half first."""
    pairs = out.view(torch.int16).view(-1, 2)
    pairs[:, 0] = lower
    pairs[:, 1] = upper


def _cut(whole: Tensor, upper: Tensor, lower: Tensor) -> None:
    """Write the halves of these floats."""
    pairs = whole.view(torch.int16).view(-1, 2)
    lower.copy_(pairs[:, 0])
    upper.copy_(pairs[:, 1])
