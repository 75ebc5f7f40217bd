"""Steps that compute values: arithmetic, comparisons, reductions, orders, and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from rowmill.partition.capture import varies
from rowmill.partition.operators import name_of
from rowmill.partition.plan.format import NotNative, dtype_name, shape_of
from rowmill.partition.plan.steps import dim_given, size_given

if TYPE_CHECKING:
    from rowmill.partition.plan.steps import Steps

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
ARITHMETIC = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "neg": "neg",
    "logical_and": "and",
    "bitwise_and": "and",
    "logical_or": "or",
    "bitwise_or": "or",
    "logical_not": "not",
    "bitwise_not": "not",
}
"""Operators of torch, and what a plan calls them."""


def add_cast(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Another type."""
    dtype = dtype_name(node.meta["val"].dtype)
    steps.add(node, "cast", source=steps.name(arguments["self"]), dtype=dtype)


def add_comparison(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Booleans."""
    a, b = steps.operand(arguments["self"]), steps.operand(arguments["other"])
    steps.add(node, "compare", how=_short_name(node), a=a, b=b)


def add_where(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """One of two values per element."""
    a, b = steps.operand(arguments["self"]), steps.operand(arguments["other"])
    steps.add(node, "where", **{"if": steps.name(arguments["condition"]), "a": a, "b": b})


def add_clamp(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Values between two limits; relu has the lower limit 0."""
    least = 0 if _short_name(node) == "relu" else arguments.get("min")
    most = arguments.get("max")
    if isinstance(least, fx.Node) or isinstance(most, fx.Node):
        raise NotNative("aten::clamp by tensors")
    steps.add(node, "clamp", source=steps.name(arguments["self"]), min=least, max=most)


def add_arithmetic(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Sums, products and the like of two operands or of one."""
    if arguments.get("alpha", 1) != 1 or arguments.get("rounding_mode") is not None:
        raise NotNative(f"{name_of(node.target)} with a factor or rounding")
    name = _short_name(node)
    a, b = steps.operand(arguments["self"]), steps.operand(arguments.get("other"))
    if name == "rsub":
        name, a, b = "sub", b, a
    steps.add(node, "arithmetic", how=ARITHMETIC[name], a=a, b=b)


def add_function(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A function of each element, under its own name."""
    steps.add(node, _short_name(node), source=steps.name(arguments["self"]))


def add_softmax(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Softmax over one dimension."""
    source = steps.name(arguments["self"])
    steps.add(node, "softmax", source=source, dim=dim_given(arguments))


def add_reduction(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A sum or mean over dimensions other than that of the batch."""
    value, given = arguments["self"].meta["val"], arguments.get("dim")
    dims = [given] if isinstance(given, int) else list(given or range(value.dim()))
    dims = sorted(dim % value.dim() for dim in dims)
    if any(varies(value.shape[dim]) for dim in dims):
        raise NotNative(f"{name_of(node.target)} along the batch")
    source, keep = steps.name(arguments["self"]), bool(arguments.get("keepdim"))
    steps.add(node, _short_name(node), source=source, dims=dims, keep=keep)


def add_topk(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """The largest or smallest values, and their positions."""
    largest = arguments.get("largest", True)
    _add_order(steps, node, arguments, k=size_given(arguments["k"]), largest=largest)


def add_sort(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """All values in order, and their positions."""
    descending = bool(arguments.get("descending", False))
    stable = bool(arguments.get("stable", False))
    _add_order(steps, node, arguments, descending=descending, stable=stable)


def _add_order(steps: Steps, node: fx.Node, arguments: dict[str, Any], **fields: Any) -> None:
    source, value = steps.name(arguments["self"]), arguments["self"].meta["val"]
    dim = arguments.get("dim", -1) % max(value.dim(), 1)
    outs = [f"{node.name}.values", f"{node.name}.positions"]
    steps.parts |= {(node.name, number): out for number, out in enumerate(outs)}
    steps.add_value(outs, _short_name(node), source=source, dim=dim, **fields)


def add_range(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Numbers from a start to a stop."""
    steps.add(
        node,
        "range",
        start=size_given(arguments.get("start", 0)),
        stop=size_given(arguments["end"]),
        step=arguments.get("step", 1),
        dtype=dtype_name(node.meta["val"].dtype),
    )


def add_full(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """One number in every element."""
    value = node.meta["val"]
    number = 1 if _short_name(node) == "ones" else arguments.get("fill_value", 0)
    if isinstance(number, fx.Node):
        number = {"size": size_given(number)}
    steps.add(node, "full", shape=shape_of(value), value=number, dtype=dtype_name(value.dtype))


def _short_name(node: fx.Node) -> str:
    return name_of(node.target).removeprefix("aten::")
