"""Steps that move elements and compute none: views, permutations, concatenations, slices and gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rowmill.partition.operators import name_of
from rowmill.partition.plan.format import NotNative, dtype_name, product_of, shape_of, size_of
from rowmill.partition.plan.steps import dim_given, size_given

if TYPE_CHECKING:
    from torch import Tensor, fx

    from rowmill.partition.plan.steps import Steps

_LAST = 2**63 - 1
"""The end of a slice that has none."""


def add_view(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """The same elements in another shape."""
    shape = shape_of(node.meta["val"])
    steps.add(node, "view", source=steps.name(arguments["self"]), shape=shape)


def add_broadcast(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Dimensions of size 1, repeated."""
    shape = shape_of(node.meta["val"])
    steps.add(node, "broadcast", source=steps.name(arguments["self"]), shape=shape)


def add_permute(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Dimensions in another order."""
    count = arguments["self"].meta["val"].dim()
    dims = list(range(count))
    if "dims" in arguments:
        dims = [dim % count for dim in arguments["dims"]]
    elif "dim0" in arguments:
        first, second = arguments["dim0"], arguments["dim1"]
        dims[first], dims[second] = dims[second], dims[first]
    else:  # aten::t
        dims.reverse()
    steps.add(node, "permute", source=steps.name(arguments["self"]), dims=dims)


def add_cat(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Tensors side by side."""
    dim = arguments.get("dim", 0) % node.meta["val"].dim()
    steps.add(node, "cat", ins=[steps.name(source) for source in arguments["tensors"]], dim=dim)


def add_stack(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Tensors side by side along a new dimension."""
    dim = arguments.get("dim", 0) % node.meta["val"].dim()
    sources = [(source, steps.name(source)) for source in arguments["tensors"]]
    views: list[str] = []
    for number, (source, name) in enumerate(sources):
        shape = shape_of(source.meta["val"])
        views.append(f"{node.name}.{number}")
        steps.add_value(views[-1], "view", source=name, shape=[*shape[:dim], 1, *shape[dim:]])
    steps.add(node, "cat", ins=views, dim=dim)


def add_pad(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A constant before and behind the last dimension, as a cat."""
    before, behind, *others = arguments["pad"]
    if arguments.get("mode", "constant") != "constant" or others or min(before, behind) < 0:
        raise NotNative("aten::pad other than of the last dimension with a constant")
    value = node.meta["val"]
    ins = [steps.name(arguments["self"])]
    for at, (width, name) in enumerate(((before, "before"), (behind, "behind"))):
        if width:
            out = f"{node.name}.{name}"
            steps.add_value(
                out,
                "full",
                shape=[*shape_of(value)[:-1], width],
                value=arguments.get("value") or 0,
                dtype=dtype_name(value.dtype),
            )
            ins.insert(len(ins) if at else 0, out)
    steps.add(node, "cat", ins=ins, dim=value.dim() - 1)


def add_slice(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A range of one dimension."""
    value = arguments["self"].meta["val"]
    dim = arguments.get("dim", 0) % value.dim()
    start, stop = arguments.get("start"), arguments.get("end")
    steps.add(
        node,
        "slice",
        source=steps.name(arguments["self"]),
        dim=dim,
        start=0 if start is None else size_given(start),
        stop=size_of(value.shape[dim]) if stop is None or stop == _LAST else size_given(stop),
        step=arguments.get("step", 1),
    )


def add_select(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """One index of a dimension."""
    value, index = arguments["self"].meta["val"], size_given(arguments["index"])
    source = steps.name(arguments["self"])
    _add_one(steps, node.name, source, value, arguments["dim"] % value.dim(), index)
    steps.names[node.name] = node.name


def _add_one(steps: Steps, out: str, source: str, value: Tensor, dim: int, index: Any) -> None:
    """Steps that take one index of a dimension away."""
    if not isinstance(index, int) or index < 0:
        size = size_of(value.shape[dim])
        if not isinstance(index, int) or not isinstance(size, int):
            raise NotNative("aten::select by a size")
        index += size
    cut = f"{out}.cut"
    steps.add_value(cut, "slice", source=source, dim=dim, start=index, stop=index + 1, step=1)
    shape = shape_of(value)
    del shape[dim]
    steps.add_value(out, "view", source=cut, shape=shape)


def add_unbind(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Every index of a dimension, a result each."""
    source, value = steps.name(arguments["self"]), arguments["self"].meta["val"]
    for number, _ in enumerate(node.meta["val"]):
        out = f"{node.name}.{number}"
        steps.parts[node.name, number] = out
        _add_one(steps, out, source, value, arguments.get("dim", 0) % value.dim(), number)


def add_split(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Ranges of a dimension, a result each."""
    source, value = steps.name(arguments["self"]), arguments["self"].meta["val"]
    dim = arguments.get("dim", 0) % value.dim()
    start = 0
    for number, piece in enumerate(node.meta["val"]):
        out = f"{node.name}.{number}"
        steps.parts[node.name, number] = out
        size = size_of(piece.shape[dim])
        if not isinstance(size, int):
            raise NotNative(f"{name_of(node.target)} along the batch")
        steps.add_value(
            out, "slice", source=source, dim=dim, start=start, stop=start + size, step=1
        )
        start += size


def add_index_select(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Elements of a dimension by an index."""
    _add_gather(steps, node, arguments, dim_given(arguments), arguments["index"])


def add_index(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """Elements by indices, of which one is given."""
    given = [(dim, at) for dim, at in enumerate(arguments["indices"]) if at is not None]
    if len(given) != 1 or given[0][1].meta["val"].dtype == torch.bool:
        raise NotNative("aten::index with several indices or a mask")
    _add_gather(steps, node, arguments, *given[0])


def _add_gather(
    steps: Steps, node: fx.Node, arguments: dict[str, Any], dim: int, index: fx.Node
) -> None:
    source, at = steps.name(arguments["self"]), steps.name(index)
    shape = shape_of(index.meta["val"])
    if len(shape) == 1:
        steps.add(node, "gather", source=source, dim=dim, index=at)
        return
    # The index as one row of numbers, and its dimensions back in the result.
    flat, rows = f"{node.name}.index", f"{node.name}.rows"
    steps.add_value(flat, "view", source=at, shape=[product_of(shape)])
    steps.add_value(rows, "gather", source=source, dim=dim, index=flat)
    steps.add(node, "view", source=rows, shape=shape_of(node.meta["val"]))
