"""Split-SGD-BF16 and split Adagrad: torch optimizers for dense bfloat16 weights whose lower halves are optimizer state.

A weight and its lower half form one 32-bit float, which an update joins, changes and splits again (Kalamkar et al. 2020,
"Optimizing Deep Learning Recommender Systems' Training on CPU Cluster Architectures"). For equal gradients the joined
weights are bit-identical to float32 weights under the corresponding torch optimizer, in as many bytes. The model computes
with the upper halves only.
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
"""Weights joined at a time. It limits the temporary memory of an update to 1 MiB per tensor."""


class _SplitOptimizer(torch.optim.Optimizer):
    """Base class: joins and splits weights in chunks; `_update` of a subclass changes the joined weights."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add weights. Float32 weights become bfloat16 at once; their lower halves become state, so no bit is lost."""
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
        """Restore a saved state, bit-identically."""
        super().load_state_dict(state_dict)
        # torch casts state to the dtype of the weights; copy it again in its own dtypes.
        for mine, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            for weight, number in zip(mine["params"], saved["params"], strict=True):
                state = state_dict["state"][number]
                self.state[weight] = {
                    name: value.to(weight.device, copy=True) for name, value in state.items()
                }

    def whole(self, weight: nn.Parameter) -> Tensor:
        """The weight joined with its lower half, as float32."""
        out = torch.empty_like(weight, dtype=torch.float32)
        _join(_halves(weight), self.state[weight]["lower"].view(-1), out.view(-1))
        return out

    def _born(self, weight: nn.Parameter, group: dict[str, Any]) -> dict[str, Tensor]:
        """Initial state besides the lower halves, in the shape of the weight."""
        return {}

    @abstractmethod
    def _update(
        self, whole: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]
    ) -> None:
        """Update a chunk of joined weights and their state in place."""

    def _step(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        if gradient.is_sparse:
            raise InvalidInput(
                "split optimizers need dense gradients, got a sparse gradient: use sparse=False"
            )
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
    """`w -= lr * g`, as `torch.optim.SGD`, on bfloat16 weights and their lower halves. State: two bytes per weight.

    Args:
        params: Contiguous weights, or groups of them. Float32 weights become bfloat16 at once, without loss of bits;
            bfloat16 weights begin with lower halves of 0. Create the optimizer before any code that copies or flattens
            the weights.
        lr: Learning rate, >= 0.

    Raises:
        InvalidInput: `lr` is negative, or a weight is not contiguous or neither float32 nor bfloat16.

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
        # One pass over 10 bytes per weight; the plain torch version makes several passes over more bytes.
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
    """`s += g * g; w -= lr * g / (sqrt(s) + eps)`, as `torch.optim.Adagrad`, on weights as in `SplitSGD`.

    State: six bytes per weight.

    Args:
        params: As for `SplitSGD`.
        lr: Learning rate, >= 0.
        eps: Added to the root.
        initial_accumulator: Initial s.
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
    """Make a weight bfloat16; return its lower halves."""
    if weight.dtype not in (torch.float32, torch.bfloat16) or not weight.is_contiguous():
        raise InvalidInput(
            f"split optimizers need contiguous float32 or bfloat16 weights, got {weight.dtype} with strides "
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
    """Write the floats of these halves into `out`. Floats are little-endian: the lower half is first."""
    pairs = out.view(torch.int16).view(-1, 2)
    pairs[:, 0] = lower
    pairs[:, 1] = upper


def _cut(whole: Tensor, upper: Tensor, lower: Tensor) -> None:
    """Write the halves of these floats into `upper` and `lower`."""
    pairs = whole.view(torch.int16).view(-1, 2)
    lower.copy_(pairs[:, 0])
    upper.copy_(pairs[:, 1])
