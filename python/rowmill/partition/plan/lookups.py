"""Steps for lookups of stored rows, and of `torch.nn.Embedding` and `EmbeddingBag`, whose weights become rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from rowmill.ops.handles import table_of
from rowmill.partition.operators import name_of
from rowmill.partition.plan.format import NotNative, dtype_name, product_of, shape_of, size_of
from rowmill.partition.plan.steps import size_given

if TYPE_CHECKING:
    from rowmill.partition.plan.steps import Steps

_TAKES_MAXIMUM = 2
"""The mode of `EmbeddingBag` that pools by the maximum; 1 is the mean, 0 the sum."""


def add_lookup(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A lookup of stored rows."""
    paddings = [
        padding if padded else None
        for padded, padding in zip(arguments["padded"], arguments["paddings"], strict=True)
    ]
    weights = arguments["weights"]
    steps.add(
        node,
        "lookup",
        ids=steps.name(arguments["ids"]),
        offsets=steps.name(arguments["offsets"]),
        weights=None if weights is None else steps.name(weights),
        tables=[table_of(handle).name for handle in arguments["tables"]],
        features=list(arguments["features"]),
        means=list(arguments["means"]),
        paddings=paddings,
        bags=size_given(arguments["bags"]),
        dim=arguments["dim"],
        dtype=dtype_name(arguments["dtype"]),
    )


def add_embedding(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A row per id: a lookup of bags of one id, in the shape of the ids."""
    weight, padding = _weight_and_padding(steps, node, arguments)
    if padding is not None and bool(steps.weight(weight)[padding].any()):
        padding = None
    shape = shape_of(node.meta["val"])
    count = product_of(shape[:-1])
    ids, offsets, rows = (f"{node.name}.{name}" for name in ("ids", "offsets", "rows"))
    steps.add_value(ids, "view", source=steps.name(arguments["indices"]), shape=[count])
    steps.add_value(offsets, "range", start=0, stop=["+", count, 1], step=1, dtype="int64")
    _add_rows(steps, rows, weight, ids, offsets, padding=padding, bags=count)
    steps.add(node, "view", source=rows, shape=shape)


def add_embedding_bag(steps: Steps, node: fx.Node, arguments: dict[str, Any]) -> None:
    """A pooled vector per bag."""
    weight, padding = _weight_and_padding(steps, node, arguments)
    mode = arguments.get("mode", 0)
    if mode == _TAKES_MAXIMUM:
        raise NotNative("aten::embedding_bag that takes the maximum")
    ids, rows = arguments["indices"], f"{node.name}.rows"
    id_values = steps.name(ids)
    if arguments.get("include_last_offset"):
        offsets = steps.name(arguments["offsets"])
    else:
        last, offsets = f"{node.name}.last", f"{node.name}.offsets"
        count = {"size": size_of(ids.meta["val"].shape[0])}
        steps.add_value(last, "full", shape=[1], value=count, dtype="int64")
        steps.add_value(offsets, "cat", ins=[steps.name(arguments["offsets"]), last], dim=0)
    factors = arguments.get("per_sample_weights")
    _add_rows(
        steps,
        rows,
        weight,
        id_values,
        offsets,
        factors=None if factors is None else steps.name(factors),
        is_mean=mode == 1,
        padding=padding,
        bags=size_of(node.meta["val"][0].shape[0]),
    )
    steps.parts[node.name, 0] = rows


def _weight_and_padding(
    steps: Steps, node: fx.Node, arguments: dict[str, Any]
) -> tuple[fx.Node, int | None]:
    weight, padding = arguments["weight"], arguments.get("padding_idx")
    if not isinstance(weight, fx.Node) or weight.name not in steps.weights:
        raise NotNative(f"{name_of(node.target)} of computed weights")
    return weight, None if padding is None or padding < 0 else padding


def _add_rows(
    steps: Steps,
    out: str,
    weight: fx.Node,
    ids: str,
    offsets: str,
    *,
    factors: str | None = None,
    is_mean: bool = False,
    padding: int | None,
    bags: Any,
) -> None:
    steps.add_value(
        out,
        "lookup",
        ids=ids,
        offsets=offsets,
        weights=factors,
        tables=[steps.weights[weight.name].removesuffix(".weight")],
        features=[0],
        means=[is_mean],
        paddings=[padding],
        bags=bags,
        dim=weight.meta["val"].shape[1],
        dtype=dtype_name(weight.meta["val"].dtype),
    )
