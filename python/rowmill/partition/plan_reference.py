"""Runs plans in torch: the reference that other implementations are tested against."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from rowmill.partition.plan import NotNative, Step

LookUp = Callable[[Step, Tensor, Tensor, Tensor | None, int], Tensor]
"""The pooled vectors of a lookup step, given ids, offsets, weights and the number of bags."""


def run_plan(
    plan: Mapping[str, Any],
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    look_up: LookUp,
) -> dict[str, Tensor]:
    """The outputs of a plan by name.

    Args:
        plan: Of `plan_of`.
        inputs: By name.
        weights: The file of weights.
        look_up: Reads rows.
    """
    values = {named["name"]: inputs[named["name"]] for named in plan["inputs"]}
    sizes = {
        size: actual
        for named in plan["inputs"]
        for size, actual in zip(named["shape"], values[named["name"]].shape, strict=True)
        if isinstance(size, str)
    }
    for step in plan["steps"]:
        result = _run_step(step, values, sizes, weights, look_up)
        if isinstance(step["out"], list):
            values |= zip(step["out"], result, strict=True)
        else:
            values[step["out"]] = result
    return {named["name"]: values[named["value"]] for named in plan["outputs"]}


def evaluate_size(size: Any, sizes: Mapping[str, int]) -> int:
    """The number that a size stands for."""
    if isinstance(size, list):
        how, a, b = cast("list[Any]", size)
        of = operator.add if how == "+" else operator.mul
        return of(evaluate_size(a, sizes), evaluate_size(b, sizes))
    return sizes[size] if isinstance(size, str) else size


def _run_step(
    step: Step,
    values: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    weights: Mapping[str, Tensor],
    look_up: LookUp,
) -> Any:
    def size(name: str) -> int:
        return evaluate_size(step[name], sizes)

    def shape() -> list[int]:
        return [evaluate_size(one, sizes) for one in step["shape"]]

    def operand(name: str) -> Any:
        given = step[name]
        return values[given] if isinstance(given, str) else given["number"]

    source: Any = values[step["in"]] if "in" in step else torch.empty(0)
    dtype = getattr(torch, step["dtype"]) if "dtype" in step else None
    match step["op"]:
        case "lookup":
            factors = None if step["weights"] is None else values[step["weights"]]
            out = look_up(step, values[step["ids"]], values[step["offsets"]], factors, size("bags"))
            return out.to(dtype)
        case "view":
            return source.reshape(shape())
        case "permute":
            return source.permute(step["dims"])
        case "broadcast":
            return source.expand(shape())
        case "cat":
            return torch.cat([values[name] for name in step["ins"]], step["dim"])
        case "slice":
            return torch.ops.aten.slice(
                source, step["dim"], size("start"), size("stop"), step["step"]
            )
        case "gather":
            index = (*[slice(None)] * step["dim"], values[step["index"]])
            return source[index]
        case "cast":
            return source.to(dtype)
        case "compare":
            return getattr(torch, step["how"])(operand("a"), operand("b"))
        case "where":
            return torch.where(values[step["if"]], operand("a"), operand("b"))
        case "clamp":
            return source.clamp(step["min"], step["max"])
        case "arithmetic":
            return _ARITHMETIC_IN_PYTHON[step["how"]](operand("a"), operand("b"))
        case "log1p" | "sigmoid":
            return getattr(torch, step["op"])(source)
        case "softmax":
            return source.softmax(step["dim"])
        case "sum" | "mean":
            return getattr(torch, step["op"])(source, step["dims"], keepdim=step["keep"])
        case "topk":
            return source.topk(size("k"), step["dim"], step["largest"])
        case "sort":
            return torch.sort(
                source, dim=step["dim"], descending=step["descending"], stable=step["stable"]
            )
        case "range":
            return torch.arange(size("start"), size("stop"), size("step"), dtype=dtype)
        case "full":
            number = step["value"]
            if isinstance(number, dict):
                number = evaluate_size(number["size"], sizes)
            return torch.full(shape(), number, dtype=dtype)
        case "weight":
            return weights[step["name"]]
        case other:
            raise NotNative(other)


_ARITHMETIC_IN_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": lambda a, _: -a,
    "and": operator.and_,
    "or": operator.or_,
    "not": lambda a, _: ~a,
}
