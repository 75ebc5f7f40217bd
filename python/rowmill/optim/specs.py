"""Optimizers of rows, as specs of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowmill.errors import InvalidInput
from rowmill.init import Constant, Initializer, Normal, TruncatedNormal, Uniform, Zeros

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True)
class SGD:
    """`w -= lr * g`, as `torch.optim.SGD`. No state."""

    lr: float


@dataclass(frozen=True)
class MomentumSGD:
    """`v = momentum * v + g; w -= lr * v` on rows with a gradient. State: one float per weight.

    With `nesterov`, `w -= lr * (g + momentum * v)`. On rows with a gradient this is `torch.optim.SGD` with dampening
    0. Rows without a gradient do not change, whereas torch moves all rows.
    """

    lr: float
    momentum: float = 0.9
    nesterov: bool = False


@dataclass(frozen=True)
class Adagrad:
    """`s += g * g; w -= lr * g / (sqrt(s) + eps)`, as `torch.optim.Adagrad`. State: one float per weight."""

    lr: float
    eps: float = 1e-10
    initial_accumulator: float = 0.0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator per row: `s += mean(g * g)`. State: one float per row."""

    lr: float
    eps: float = 1e-10
    initial_accumulator: float = 0.0


@dataclass(frozen=True)
class Adam:
    """Adam on rows with a gradient, as `torch.optim.SparseAdam`. State: two floats per weight."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True)
class RowwiseAdam:
    """Adam with one second moment per row, of `mean(g * g)`. State: one float per weight and one per row.

    It equals FBGEMM's `PARTIAL_ROWWISE_ADAM` on rows with a gradient. As in `Adam`, bias correction uses the steps of
    the table, and `eps` is added to the uncorrected root.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8


@dataclass(frozen=True)
class FTRL:
    """FTRL-Proximal (McMahan et al., KDD 2013, Algorithm 1). State: two floats per weight.

    `n' = n + g * g; z += g - (sqrt(n') - sqrt(n)) / lr * w`, then `w = 0` where `abs(z) <= l1`, and elsewhere
    `w = -(z - sign(z) * l1) / ((beta + sqrt(n')) / lr + l2)`.

    From its first update on, a row's weights are a function of z and n. That update keeps only the share
    `(sqrt(n') - sqrt(n)) / (beta + sqrt(n') + lr * l2)` of earlier weights, whether initial or set by `put`. To
    continue from given weights `w`, put their state too: `-(beta + sqrt(n) + lr * l2) * w - lr * l1 * sign(w)`,
    then n.

    The stored state is `lr * z`, then n, so that changing lr does not change the weights. The penalties use the
    lr of the update.

    Args:
        lr: The paper's alpha.
        beta: Added to the root.
        l1: Strength of the penalty on `abs(w)`, which sets weights to 0.
        l2: Strength of the penalty on `w * w / 2`.
        initial_accumulator: Initial n; must be above 0 if beta is 0.
    """

    lr: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator: float = 0.0


OptimizerSpec = SGD | MomentumSGD | Adagrad | RowwiseAdagrad | Adam | RowwiseAdam | FTRL

_OPTIMIZERS: dict[str, type[OptimizerSpec]] = {
    "sgd": SGD,
    "momentum_sgd": MomentumSGD,
    "adagrad": Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": Adam,
    "rowwise_adam": RowwiseAdam,
    "ftrl": FTRL,
}
_INITIALIZERS: dict[str, type[Initializer]] = {
    "zeros": Zeros,
    "constant": Constant,
    "uniform": Uniform,
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
}


def state_of_weights(
    optimizer: OptimizerSpec, weights: NDArray[np.float32]
) -> NDArray[np.float32] | None:
    """The optimizer state that corresponds to given weights `[n, dim]`; None: the state of a new row.

    Only FTRL needs one, because it computes weights from its state.
    """
    if not isinstance(optimizer, FTRL):
        return None
    accumulator = np.full_like(weights, optimizer.initial_accumulator)
    share = optimizer.beta + np.sqrt(accumulator) + optimizer.lr * optimizer.l2
    state = -share * weights - optimizer.lr * optimizer.l1 * np.sign(weights)
    return np.concatenate([state, accumulator], axis=1, dtype=np.float32)


def optimizer_to_dict(optimizer: OptimizerSpec) -> dict[str, Any]:
    """Convert an optimizer to the dict that the binding takes."""
    return _to_dict(optimizer, _OPTIMIZERS, "optimizer", "rowmill.optim")


def initializer_to_dict(initializer: Initializer) -> dict[str, Any]:
    """Convert an initializer to the dict that the binding takes."""
    return _to_dict(initializer, _INITIALIZERS, "initializer", "rowmill.init")


def optimizer_from_dict(spec: Mapping[str, Any]) -> OptimizerSpec:
    """The inverse of `optimizer_to_dict`."""
    fields = dict(spec)
    return _OPTIMIZERS[fields.pop("kind")](**fields)


def initializer_from_dict(spec: Mapping[str, Any]) -> Initializer:
    """The inverse of `initializer_to_dict`."""
    fields = dict(spec)
    return _INITIALIZERS[fields.pop("kind")](**fields)


def _to_dict(spec: object, kinds: Mapping[str, type[Any]], what: str, home: str) -> dict[str, Any]:
    for kind, class_ in kinds.items():
        if type(spec) is class_:
            return {"kind": kind, **vars(spec)}
    known = ", ".join(class_.__name__ for class_ in kinds.values())
    raise InvalidInput(f"{what} must be one of {home}'s {known}, got {spec!r}")
