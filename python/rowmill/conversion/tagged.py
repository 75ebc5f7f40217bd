"""Optimizers of parameters tagged by `apply_optimizer_in_backward` of torch or TorchRec.

Both store the optimizer's class and arguments on the parameter; omitted arguments have the defaults of the class. Rows
with a gradient get the update of the tagged optimizer. Rows without a gradient do not change. TorchRec's fused tables do
the same; `torch.optim.Adam` and SGD with momentum change all rows.
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
"""Arguments that select torch's implementation and do not change the result."""
_DEFAULTS: dict[str, Any] = {
    "lr": 1e-2,
    "momentum": 0.0,
    "nesterov": False,
    "eps": 1e-8,
    "betas": (0.9, 0.999),
    "initial_accumulator_value": 0.0,
}
"""Defaults of FBGEMM's tables, for classes that stand for a fused optimizer and declare no arguments."""


def tagged_optimizer(parameter: Tensor, path: str) -> OptimizerSpec | None:
    """The row optimizer equivalent to a parameter's tag, or None without a tag.

    Args:
        parameter: The weights of an embedding.
        path: Path of the module, for error messages.

    Raises:
        InvalidInput: There are several tags, or no row optimizer is equivalent to the tag.
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
            f"{path}: tagged with {classes[0].__module__}.{name}, which has no equivalent for rows; tag it with one "
            f"of {', '.join(_TAKES)}, or remove the tag and pass optimizer="
        )
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(classes[0]).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    for key, value in given.items():
        # An unsupported argument is allowed if it is falsy or at its default: it then has no effect.
        plain = key in _MEANINGLESS or not value or (key in defaults and value == defaults[key])
        if key not in _TAKES[name] and not plain:
            raise InvalidInput(
                f"{path}: tagged with {name} and {key} = {value!r}, which rows do not support; remove {key} "
                f"(supported: {', '.join(_TAKES[name])})"
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
            f"{path}: tagged with {name} and arguments that are not numbers: {shown}"
        ) from None
