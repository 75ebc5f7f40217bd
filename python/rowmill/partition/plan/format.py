"""The format of a CPU plan: steps, sizes and types as JSON.

A plan is a list of steps. Each takes values by name and makes one. The operators are a closed list:

| op | fields beside `out` | meaning |
|---|---|---|
| `lookup` | `ids`, `offsets`, `weights`, `tables`, `features`, `means`, `paddings`, `bags`, `dim`, `dtype` | `rowmill.ops.lookup.reference` |
| `view` | `in`, `shape` | the same elements in row-major order |
| `permute` | `in`, `dims` | dimensions in another order |
| `broadcast` | `in`, `shape` | repeats dimensions of size 1 |
| `cat` | `ins`, `dim` | side by side |
| `slice` | `in`, `dim`, `start`, `stop`, `step` | as in Python; `stop` at most the size |
| `gather` | `in`, `dim`, `index` | elements of a dimension by a 1-D index |
| `cast` | `in`, `dtype` | |
| `compare` | `how` (lt, le, gt, ge, eq, ne), `a`, `b` | bool |
| `where` | `if`, `a`, `b` | |
| `clamp` | `in`, `min`, `max` | a limit may be null |
| `arithmetic` | `how` (add, sub, mul, div, neg, and, or, not), `a`, `b` | |
| `log1p`, `sigmoid` | `in` | |
| `softmax` | `in`, `dim` | |
| `sum`, `mean` | `in`, `dims`, `keep` | over dimensions other than that of the batch |
| `topk` | `in`, `k`, `dim`, `largest` | `out` has values and positions |
| `sort` | `in`, `dim`, `descending`, `stable` | `out` has values and positions |
| `range` | `start`, `stop`, `step`, `dtype` | |
| `full` | `shape`, `value`, `dtype` | |
| `weight` | `name` | a tensor of the file of weights |

A size is a number, the name of a size of an input, or a list `["+", a, b]`, `["*", a, b]`. Operands `a` and `b` are names of values,
or numbers as `{"number": 1.0}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

Step = dict[str, Any]


class NotNative(Exception):
    """An operator has no step in a plan; the message names it."""


def dtype_name(dtype: torch.dtype) -> str:
    """A type as plans and signatures call it, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def shape_of(value: Tensor) -> list[Any]:
    """A shape whose sizes may be expressions."""
    return [size_of(size) for size in value.shape]


def size_of(size: Any) -> Any:
    """A size as JSON.

    Raises:
        NotNative: It is computed by other operations than sums and products.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    return _expression(size.node.expr)


def product_of(sizes: list[Any]) -> Any:
    """The number of elements of a shape as JSON."""
    count: Any = 1
    for size in sizes:
        count = size if count == 1 else ["*", count, size]
    return count


def _expression(expression: Any) -> Any:
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return str(expression)
    if expression.is_Add or expression.is_Mul:
        first, *rest = (_expression(argument) for argument in expression.args)
        for other in rest:
            first = ["+" if expression.is_Add else "*", first, other]
        return first
    raise NotNative(f"a size of {expression}")
