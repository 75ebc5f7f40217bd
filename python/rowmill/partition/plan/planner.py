"""Translates the operators of a part into the steps of its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.partition.capture import is_part, is_size
from rowmill.partition.operators import name_of
from rowmill.partition.plan import elements, lookups, values
from rowmill.partition.plan.format import NotNative, dtype_name, shape_of
from rowmill.partition.plan.steps import Steps, arguments_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from rowmill.partition.split import Part

    Adds = Callable[[Steps, fx.Node, dict[str, Any]], None]


def _same(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """An operator whose result is its input."""
    steps.names[node.name] = steps.name(arguments["self"])


# What writes the steps of an operator. An operator outside this table is not native.
_ADDS: dict[str, Adds] = {
    "rowmill::lookup": lookups.add_lookup,
    "aten::embedding": lookups.add_embedding,
    "aten::embedding_bag": lookups.add_embedding_bag,
    "aten::expand": elements.add_broadcast,
    "aten::cat": elements.add_cat,
    "aten::stack": elements.add_stack,
    "aten::pad": elements.add_pad,
    "aten::slice": elements.add_slice,
    "aten::select": elements.add_select,
    "aten::unbind": elements.add_unbind,
    "aten::index": elements.add_index,
    "aten::index_select": elements.add_index_select,
    "aten::where": values.add_where,
    "aten::topk": values.add_topk,
    "aten::sort": values.add_sort,
    "aten::arange": values.add_range,
}
for _adds, _names in (
    (_same, ("alias", "clone", "contiguous", "detach", "lift_fresh_copy")),
    (
        elements.add_view,
        ("_unsafe_view", "flatten", "reshape", "squeeze", "unflatten", "unsqueeze", "view"),
    ),
    (elements.add_permute, ("t", "transpose", "permute")),
    (elements.add_split, ("split", "split_with_sizes", "chunk")),
    (values.add_cast, ("to", "_to_copy")),
    (values.add_comparison, values.COMPARISONS),
    (values.add_clamp, ("clamp", "clamp_min", "clamp_max", "relu")),
    (values.add_arithmetic, ("rsub", *values.ARITHMETIC)),
    (values.add_function, ("log1p", "sigmoid")),
    (values.add_softmax, ("softmax", "_softmax")),
    (values.add_reduction, ("sum", "mean")),
    (values.add_full, ("full", "new_full", "zeros", "new_zeros", "ones", "empty")),
):
    _ADDS.update({f"aten::{_name}": _adds for _name in _names})


def plan_of(part: Part) -> dict[str, Any]:
    """The plan of a part.

    Raises:
        NotNative: It holds an operator that no step stands for.
    """
    program = part.program
    nodes = {node.name: node for node in program.graph.nodes}
    steps = Steps(program)
    inputs: list[dict[str, Any]] = []
    for name, placeholder in zip(part.inputs, program.graph_signature.user_inputs, strict=True):
        value = nodes[str(placeholder)].meta["val"]
        steps.names[str(placeholder)] = name
        inputs.append({"name": name, "dtype": dtype_name(value.dtype), "shape": shape_of(value)})
    for node in program.graph.nodes:
        if node.op == "call_function" and node.meta.get("val") is not None and not is_size(node):
            _add(steps, node)
    outputs = [
        {"name": name, "value": steps.name(nodes[str(result)])}
        for name, result in zip(part.outputs, program.graph_signature.user_outputs, strict=True)
    ]
    return {"inputs": inputs, "steps": steps.written, "outputs": outputs}


def _add(steps: Steps, node: fx.Node) -> None:
    if is_part(node):
        steps.take_part(node)
        return
    name = name_of(node.target)
    if name not in _ADDS:
        raise NotNative(name)
    _ADDS[name](steps, node, arguments_of(node))
