"""The optimizer that a parameter was tagged with: `apply_optimizer_in_backward` of torch and of TorchRec.

Both leave the optimizer's class and its arguments on the parameter. Arguments that were left out have the defaults of
that class. Row for row the updates are those of the tagged optimizer; rows without a gradient stand still, as they do
in TorchRec's own fused tables and not in `torch.optim.Adam` or with momentum.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rowmill.errors import InvalidInput
from rowmill.optim.specs import SGD, Adagrad, Adam, MomentumSGD, RowwiseAdagrad, RowwiseAdam

if TYPE_CHECKING:
    from torch import Tensor

    from rowmill.optim.specs import OptimizerSpec

_TAKES = {
    "SGD": ("lr", "momentum", "nesterov"),
    "Adagrad": ("lr", "eps", "initial_accumulator_value"),
    "RowWiseAdagrad": ("lr", "eps", "initial_accumulator_value"),
    "Adam": ("lr", "betas", "eps"),
    "SparseAdam": ("lr", "betas", "eps"),
    "PartialRowWiseAdam": ("lr", "betas", "eps"),
}
_MEANINGLESS = {"params", "foreach", "fused", "capturable", "differentiable"}
"""How torch computes, not what."""
_DEFAULTS: dict[str, Any] = {
    "lr": 1e-2,
    "momentum": 0.0,
    "nesterov": False,
    "eps": 1e-8,
    "betas": (0.9, 0.999),
    "initial_accumulator_value": 0.0,
}
"""For classes that stand for a fused optimizer and name no arguments: those of FBGEMM's tables."""


def tagged_optimizer(parameter: Tensor, path: str) -> OptimizerSpec | None:
    """What a parameter is tagged with, or None; raises if no optimizer of rows does the same.

    Args:
        parameter: The weights of an embedding.
        path: Where they are, for messages.
    """
    classes: list[type[Any]] = getattr(parameter, "_optimizer_classes", [])
    arguments: list[dict[str, Any]] = getattr(parameter, "_optimizer_kwargs", [])
    if not classes:
        return None
    if len(classes) > 1:
        raise InvalidInput(
            f"{path}: tagged with {len(classes)} optimizers, {', '.join(c.__name__ for c in classes)}; tag it once"
        )
    name, given = classes[0].__name__, arguments[0]
    if name not in _TAKES or classes[0].__module__.split(".")[0] not in ("torch", "torchrec"):
        raise InvalidInput(
            f"{path}: tagged with {classes[0].__module__}.{name}, which no optimizer of rows is like; tag it with one "
            f"of {', '.join(_TAKES)}, or leave the tag away and pass optimizer="
        )
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(classes[0]).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    for key, value in given.items():
        # What is left at its default, or switched off, changes nothing.
        plain = key in _MEANINGLESS or not value or (key in defaults and value == defaults[key])
        if key not in _TAKES[name] and not plain:
            raise InvalidInput(
                f"{path}: tagged with {name} and {key} = {value!r}, which rows have not; drop {key} (known: "
                f"{', '.join(_TAKES[name])})"
            )
    return _spec(name, {**_DEFAULTS, **defaults, **given}, path)


def _spec(name: str, values: dict[str, Any], path: str) -> OptimizerSpec:
    try:
        lr, eps = float(values["lr"]), float(values["eps"])
        if name == "SGD":
            momentum, nesterov = float(values["momentum"]), bool(values["nesterov"])
            return MomentumSGD(lr, momentum, nesterov) if momentum else SGD(lr)
        if name in ("Adagrad", "RowWiseAdagrad"):
            initial = float(values["initial_accumulator_value"])
            return (Adagrad if name == "Adagrad" else RowwiseAdagrad)(lr, eps, initial)
        beta1, beta2 = values["betas"]
        adam = RowwiseAdam if name == "PartialRowWiseAdam" else Adam
        return adam(lr, float(beta1), float(beta2), eps)
    except (TypeError, ValueError):
        shown = ", ".join(f"{key} = {values[key]!r}" for key in _TAKES[name])
        raise InvalidInput(
            f"{path}: tagged with {name} and arguments that are no numbers: {shown}"
        ) from None
