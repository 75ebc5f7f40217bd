"""Plans of one or a few steps with inputs and expected results, for tests of the interpreter in Rust.

`python -m python.tests.serve.plan_cases` writes the golden file of the Rust test; torch computes the expected results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rowmill.partition.plan import dtype_name
from rowmill.partition.plan_reference import run_plan

GOLDEN = Path(__file__).parents[3] / "crates/rowmill-serve/tests/golden/plans.json"

_ALL = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
)
_PLAIN = ("float32", "float64", "int64", "int32", "uint8", "bool")
_FLOATS = ("float32", "float64", "float16", "bfloat16")
ROUNDED = frozenset({"log1p", "sigmoid", "softmax", "sum", "mean"})
"""Operators whose last bits differ from torch's, because torch sums in another order or approximates differently."""


def values(dtype: str, shape: list[int], seed: int) -> Tensor:
    """Values of a dtype with both signs, zeros, and NaN and infinity if the dtype has them."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not kind.is_floating_point:
        least = 0 if dtype == "uint8" else -100
        return torch.randint(least, 100, shape, generator=generator).to(kind)
    found = torch.randn(shape, generator=generator, dtype=torch.float64).to(kind)
    if found.numel() > 3:
        found.view(-1)[:3] = torch.tensor([0.0, -0.0, float("inf")], dtype=kind)
    return found


def _case(steps: list[dict[str, Any]], /, **inputs: Tensor) -> dict[str, Any]:
    last = steps[-1]["out"]
    outs = last if isinstance(last, list) else [last]
    sizes = {"x": ["b"]}
    return {
        "plan": {
            "inputs": [
                {
                    "name": name,
                    "dtype": dtype_name(value.dtype),
                    # The batch dimension, if there is one, has a name.
                    "shape": [*sizes["x"], *value.shape[1:]]
                    if value.dim() and name == "x"
                    else list(value.shape),
                }
                for name, value in inputs.items()
            ],
            "steps": steps,
            "outputs": [{"name": out, "value": out} for out in outs],
        },
        "inputs": inputs,
    }


def _one(op: str, x: Tensor, /, out: Any = "out", **fields: Any) -> dict[str, Any]:
    return _case([{"op": op, "out": out, "in": "x", **fields}], x=x)


def cases() -> list[dict[str, Any]]:
    """All cases, without results."""
    found: list[dict[str, Any]] = []
    cube = values("float32", [4, 3, 6], 1)
    found += [
        _one("view", cube, shape=[["*", "b", 3], 6]),
        _one("view", cube, shape=["b", 2, ["+", 4, 5]]),
        _one("permute", cube, dims=[2, 0, 1]),
        _one("permute", values("int16", [3, 5], 2), dims=[1, 0]),
        _one("broadcast", values("float32", [3, 1], 3), shape=[2, "b", 4]),
        _one("slice", cube, dim=2, start=1, stop=6, step=2),
        _one("slice", cube, dim=0, start=-2, stop="b", step=1),
        _one("slice", cube, dim=1, start=2, stop=1, step=1),
        _one("full", cube, shape=["b", 2], value={"size": "b"}, dtype="int64"),
        _one("full", cube, shape=[], value=0.5, dtype="float32"),
        _one("range", cube, start=0, stop=["+", "b", 1], step=1, dtype="int64"),
        _one("range", cube, start=9, stop=-2, step=-3, dtype="int32"),
        _one("topk", cube[:, 1:, 2:], out=["v", "p"], k=2, dim=2, largest=True),
        _one("topk", cube[:, 1:, 2:], out=["v", "p"], k=3, dim=0, largest=False),
        _one("softmax", cube.nan_to_num(posinf=3.0), dim=1),
        _one("sum", cube.nan_to_num(posinf=3.0), dims=[0, 2], keep=True),
        _one("sum", values("int32", [4, 5], 4), dims=[1], keep=False),
        _one("sum", values("bool", [4, 5], 5), dims=[1], keep=False),
        _one("mean", cube.nan_to_num(posinf=3.0), dims=[1], keep=False),
        _one("mean", values("float64", [0, 5], 6), dims=[1], keep=False),
    ]
    for seed, dtype in enumerate(("float32", "float64", "int64")):
        distinct = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
        ordered = distinct.view(2, 12).to(getattr(torch, dtype))
        for descending in (False, True):
            found.append(
                _one("sort", ordered, out=["v", "p"], dim=1, descending=descending, stable=True)
            )
    with_nan = torch.tensor([1.0, float("nan"), -1.0, float("inf")])
    found.append(_one("sort", with_nan, out=["v", "p"], dim=0, descending=False, stable=True))
    index = torch.tensor([2, 0, -1, 2])
    for dtype in ("float32", "int8", "float16"):
        step = {"op": "gather", "out": "out", "in": "x", "dim": 1, "index": "i"}
        found.append(_case([step], x=values(dtype, [2, 3, 2], 7), i=index))
    for first in _PLAIN:
        for second in ("float32", "int64", "bool"):
            step = {"op": "cat", "out": "out", "ins": ["x", "y"], "dim": 1}
            found.append(_case([step], x=values(first, [2, 3], 8), y=values(second, [2, 2], 9)))
    for source in _ALL:
        finite = values(source, [12], 10)
        if finite.is_floating_point():
            finite = finite.nan_to_num(posinf=3.0) * 8
        for target in _ALL:
            # The conversion of negative floats to unsigned integers is undefined in torch.
            given = finite.abs() if target == "uint8" and finite.is_floating_point() else finite
            found.append(_one("cast", given, dtype=target))
    numbers: list[Any] = [{"number": 2}, {"number": -0.3}, {"number": True}]
    for first in _ALL:
        x = values(first, [3, 4], 11)
        for b in ["y", *numbers]:
            for how in ("lt", "le", "gt", "ge", "eq", "ne"):
                step = {"op": "compare", "out": "out", "how": how, "a": "x", "b": b}
                found.append(_case([step], x=x, y=values("float32", [4], 12)))
        for least, most in ((0, None), (None, 1), (-0.5, 0.5), (0, 3)):
            if first != "bool":
                found.append(_one("clamp", x, min=least, max=most))
        if first not in ("float16", "bfloat16"):
            for op in ("log1p", "sigmoid"):
                found.append(_one(op, x.abs() if op == "log1p" and first != "bool" else x))
    for first in _PLAIN:
        for second in _PLAIN:
            x, y = values(first, [3, 4], 13), values(second, [3, 1], 14)
            for how in ("add", "sub", "mul", "div"):
                if how == "sub" and "bool" in (first, second):
                    continue
                step = {"op": "arithmetic", "out": "out", "how": how, "a": "x", "b": "y"}
                found.append(_case([step], x=x, y=y))
            if not x.is_floating_point() and not y.is_floating_point():
                for how in ("and", "or"):
                    step = {"op": "arithmetic", "out": "out", "how": how, "a": "x", "b": "y"}
                    found.append(_case([step], x=x, y=y))
            step = {"op": "where", "out": "out", "if": "c", "a": "x", "b": "y"}
            found.append(_case([step], x=x, y=y, c=values("bool", [4], 15)))
        for number in numbers[:2]:
            for how in ("add", "mul", "div"):
                step = {"op": "arithmetic", "out": "out", "how": how, "a": "x", "b": number}
                found.append(_case([step], x=values(first, [3, 4], 16)))
            step = {"op": "where", "out": "out", "if": "c", "a": "x", "b": number}
            found.append(_case([step], x=values(first, [3, 4], 17), c=values("bool", [3, 4], 18)))
        if first == "bool" or not getattr(torch, first).is_floating_point:
            step = {"op": "arithmetic", "out": "out", "how": "not", "a": "x", "b": {"number": None}}
            found.append(_case([step], x=values(first, [7], 19)))
    for first in _FLOATS:
        for how in ("add", "mul", "div"):
            step = {"op": "arithmetic", "out": "out", "how": how, "a": "x", "b": "y"}
            found.append(_case([step], x=values(first, [3, 4], 20), y=values(first, [4], 21)))
        step = {"op": "arithmetic", "out": "out", "how": "neg", "a": "x", "b": {"number": None}}
        found.append(_case([step], x=values(first, [5], 22)))
    # In type promotion, tensors without dimensions count only with their category.
    scalar = torch.tensor(0.25, dtype=torch.float64)
    for first in ("float32", "int32"):
        step = {"op": "arithmetic", "out": "out", "how": "mul", "a": "x", "b": "y"}
        found.append(_case([step], x=values(first, [3, 2], 23), y=scalar))
    # Larger than 4 KiB, so it is allocated in the arena.
    large = values("float32", [40, 64], 24)
    chain: list[dict[str, Any]] = [
        {"op": "slice", "out": "s", "in": "x", "dim": 1, "start": 0, "stop": 32, "step": 1},
        {"op": "clamp", "out": "c", "in": "s", "min": 0, "max": None},
        {"op": "cat", "out": "out", "ins": ["c", "x", "s"], "dim": 1},
    ]
    found.append(_case(chain, x=large))
    return found


def as_json(value: Tensor) -> dict[str, Any]:
    """A tensor with its bytes as hexadecimal digits."""
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": dtype_name(value.dtype), "shape": list(value.shape), "data": data.hex()}


def golden() -> list[dict[str, Any]]:
    """All cases with the expected results."""
    found: list[dict[str, Any]] = []
    for case in cases():
        plan, inputs = case["plan"], case["inputs"]

        def no_rows(*_: Any) -> Tensor:
            raise AssertionError("no case has a lookup")

        results = run_plan(plan, inputs, {}, no_rows)
        found.append(
            {
                "plan": plan,
                "exact": not any(step["op"] in ROUNDED for step in plan["steps"]),
                "inputs": {name: as_json(value) for name, value in inputs.items()},
                "outputs": {name: as_json(value) for name, value in results.items()},
            }
        )
    return found


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in golden())
    GOLDEN.write_text(f"[\n{lines}\n]\n")
