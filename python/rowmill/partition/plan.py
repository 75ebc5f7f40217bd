"""The CPU plan: the CPU half of a split as JSON, for a worker that needs no torch.

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
from torch import Tensor, fx

from rowmill.ops.handles import table_of
from rowmill.partition.capture import is_part, is_size, varies
from rowmill.partition.operators import name_of, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rowmill.partition.split import Part

Step = dict[str, Any]


class NotNative(Exception):
    """An operator has no step in a plan; the message names it."""


_COMPARISONS = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}
_ARITHMETIC = {
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
_VIEWS = frozenset(
    {
        "_unsafe_view",
        "flatten",
        "reshape",
        "squeeze",
        "unflatten",
        "unsqueeze",
        "view",
    }
)
_SAME = frozenset({"alias", "clone", "contiguous", "detach", "lift_fresh_copy"})
_CASTS = frozenset({"to", "_to_copy"})


def plan_of(part: Part) -> dict[str, Any]:
    """The plan of a part.

    Raises:
        NotNative: It holds an operator that no step stands for.
    """
    return _Planner(part).plan()


def dtype_name(dtype: torch.dtype) -> str:
    """A type as plans and signatures call it, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def shape_of(value: Tensor) -> list[Any]:
    """A shape whose sizes may be expressions."""
    return [size_of(size) for size in value.shape]


def size_of(size: Any) -> Any:
    """A size as JSON."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return _expression(size.node.expr)


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


class _Planner:
    def __init__(self, part: Part) -> None:
        self._part = part
        self._program = part.program
        signature = part.program.graph_signature
        self._weights = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._steps: list[Step] = []
        self._names: dict[str, str] = {}
        self._parts: dict[tuple[str, int], str] = {}

    def plan(self) -> dict[str, Any]:
        nodes = {node.name: node for node in self._program.graph.nodes}
        taken = self._program.graph_signature.user_inputs
        inputs: list[dict[str, Any]] = []
        for name, placeholder in zip(self._part.inputs, taken, strict=True):
            value = nodes[str(placeholder)].meta["val"]
            self._names[str(placeholder)] = name
            inputs.append(
                {"name": name, "dtype": dtype_name(value.dtype), "shape": shape_of(value)}
            )
        for node in self._program.graph.nodes:
            if (
                node.op == "call_function"
                and node.meta.get("val") is not None
                and not is_size(node)
            ):
                self._add(node)
        results = self._program.graph_signature.user_outputs
        outputs = [
            {"name": name, "value": self._name(nodes[str(result)])}
            for name, result in zip(self._part.outputs, results, strict=True)
        ]
        return {"inputs": inputs, "steps": self._steps, "outputs": outputs}

    def _name(self, node: fx.Node) -> str:
        """The value of a node; a weight is a step of its own, when first asked for."""
        if node.name not in self._names:
            if node.name not in self._weights:
                raise NotNative(f"{node.name}, a {node.op}")
            self._step(node, "weight", name=self._weights[node.name])
        return self._names[node.name]

    def _step(self, node: fx.Node, op: str, **fields: Any) -> None:
        self._names[node.name] = node.name
        self._steps.append({"op": op, "out": node.name, **fields})

    def _operand(self, value: Any) -> Any:
        return self._name(value) if isinstance(value, fx.Node) else {"number": value}

    def _add(self, node: fx.Node) -> None:
        full = name_of(node.target)
        if is_part(node):
            self._take(node)
            return
        if full == "rowmill::lookup":
            self._lookup(node)
            return
        name = full.removeprefix("aten::")
        arguments = _arguments(node)
        value = node.meta["val"]
        if name in ("embedding", "embedding_bag"):
            self._torch_lookup(node, name, arguments)
        elif name in _SAME:
            self._names[node.name] = self._name(arguments["self"])
        elif name in _VIEWS:
            self._step(
                node, "view", **{"in": self._name(arguments["self"]), "shape": shape_of(value)}
            )
        elif name in ("t", "transpose", "permute"):
            self._permute(node, name, arguments)
        elif name == "expand":
            source = self._name(arguments["self"])
            self._step(node, "broadcast", **{"in": source, "shape": shape_of(value)})
        elif name in ("cat", "stack"):
            self._cat(node, name, arguments)
        elif name == "slice":
            self._slice(node, arguments)
        elif name == "select":
            self._select(node, arguments["self"], arguments["dim"], arguments["index"])
        elif name in ("unbind", "split", "split_with_sizes", "chunk"):
            self._split(node, name, arguments)
        elif name in ("index", "index_select"):
            self._gather(node, name, arguments)
        elif name in _CASTS:
            source = self._name(arguments["self"])
            self._step(node, "cast", **{"in": source, "dtype": dtype_name(value.dtype)})
        elif name in _COMPARISONS:
            a, b = self._operand(arguments["self"]), self._operand(arguments["other"])
            self._step(node, "compare", how=_COMPARISONS[name], a=a, b=b)
        elif name == "where":
            a, b = self._operand(arguments["self"]), self._operand(arguments["other"])
            self._step(node, "where", **{"if": self._name(arguments["condition"]), "a": a, "b": b})
        elif name in ("clamp", "clamp_min", "clamp_max", "relu"):
            self._clamp(node, name, arguments)
        elif name in ("rsub", *_ARITHMETIC):
            self._arithmetic(node, name, arguments)
        elif name in ("log1p", "sigmoid"):
            self._step(node, name, **{"in": self._name(arguments["self"])})
        elif name in ("softmax", "_softmax"):
            source = self._name(arguments["self"])
            self._step(node, "softmax", **{"in": source, "dim": self._dim(arguments)})
        elif name in ("sum", "mean"):
            self._reduce(node, name, arguments)
        elif name in ("topk", "sort"):
            self._order(node, name, arguments)
        elif name == "arange":
            start, step = arguments.get("start", 0), arguments.get("step", 1)
            fields = {
                "start": self._size(start),
                "stop": self._size(arguments["end"]),
                "step": step,
            }
            self._step(node, "range", **fields, dtype=dtype_name(value.dtype))
        elif name == "pad":
            self._pad(node, arguments)
        elif name in ("full", "new_full", "zeros", "new_zeros", "ones", "empty"):
            number = {"ones": 1}.get(name, arguments.get("fill_value", 0))
            if isinstance(number, fx.Node):
                number = {"size": self._size(number)}
            fields = {"shape": shape_of(value), "value": number}
            self._step(node, "full", **fields, dtype=dtype_name(value.dtype))
        else:
            raise NotNative(full)

    def _size(self, size: Any) -> Any:
        return size_of(size.meta["val"]) if isinstance(size, fx.Node) else size

    def _dim(self, arguments: Mapping[str, Any]) -> int:
        return arguments["dim"] % max(arguments["self"].meta["val"].dim(), 1)

    def _take(self, node: fx.Node) -> None:
        source, number = node.args
        assert isinstance(source, fx.Node), "parts are taken of results"
        assert isinstance(number, int), "parts have numbers"
        if (source.name, number) not in self._parts:
            raise NotNative(f"result {number} of {name_of(source.target)}")
        self._names[node.name] = self._parts[source.name, number]

    def _lookup(self, node: fx.Node) -> None:
        arguments = _arguments(node)
        paddings = [
            padding if padded else None
            for padded, padding in zip(arguments["padded"], arguments["paddings"], strict=True)
        ]
        weights = arguments["weights"]
        self._step(
            node,
            "lookup",
            ids=self._name(arguments["ids"]),
            offsets=self._name(arguments["offsets"]),
            weights=None if weights is None else self._name(weights),
            tables=[table_of(handle).name for handle in arguments["tables"]],
            features=list(arguments["features"]),
            means=list(arguments["means"]),
            paddings=paddings,
            bags=self._size(arguments["bags"]),
            dim=arguments["dim"],
            dtype=dtype_name(arguments["dtype"]),
        )

    def _torch_lookup(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        weight, ids = arguments["weight"], arguments["indices"]
        if not isinstance(weight, fx.Node) or weight.name not in self._weights:
            raise NotNative(f"aten::{name} of computed weights")
        padding = arguments.get("padding_idx")
        padding = None if padding is None or padding < 0 else padding
        shape = shape_of(node.meta["val"] if name == "embedding" else node.meta["val"][0])
        mode = arguments.get("mode", 0)
        if mode == 2:
            raise NotNative("aten::embedding_bag that takes the maximum")
        if name == "embedding":
            if padding is not None and bool(self._weight(weight)[padding].any()):
                padding = None
            count = _product(shape[:-1])
            flat, offsets = f"{node.name}.ids", f"{node.name}.offsets"
            self._steps.append({"op": "view", "out": flat, "in": self._name(ids), "shape": [count]})
            stop = ["+", count, 1]
            self._steps.append(
                {
                    "op": "range",
                    "out": offsets,
                    "start": 0,
                    "stop": stop,
                    "step": 1,
                    "dtype": "int64",
                }
            )
            rows, out = f"{node.name}.rows", node.name
            weights = None
        else:
            count, rows, out = shape[0], f"{node.name}.rows", None
            flat, offsets = self._name(ids), f"{node.name}.offsets"
            if arguments.get("include_last_offset"):
                offsets = self._name(arguments["offsets"])
            else:
                last = f"{node.name}.last"
                value = {"size": size_of(ids.meta["val"].shape[0])}
                self._steps.append(
                    {"op": "full", "out": last, "shape": [1], "value": value, "dtype": "int64"}
                )
                ins = [self._name(arguments["offsets"]), last]
                self._steps.append({"op": "cat", "out": offsets, "ins": ins, "dim": 0})
            factors = arguments.get("per_sample_weights")
            weights = None if factors is None else self._name(factors)
        step = {
            "ids": flat,
            "offsets": offsets,
            "weights": weights,
            "tables": [self._weights[weight.name].removesuffix(".weight")],
            "features": [0],
            "means": [mode == 1],
            "paddings": [padding],
            "bags": count,
            "dim": shape[-1],
            "dtype": dtype_name(weight.meta["val"].dtype),
        }
        self._steps.append({"op": "lookup", "out": rows, **step})
        if out is None:
            self._parts[node.name, 0] = rows
        else:
            self._step(node, "view", **{"in": rows, "shape": shape})

    def _weight(self, node: fx.Node) -> Tensor:
        name = self._weights[node.name]
        weights: dict[str, Any] = {**self._program.state_dict, **self._program.constants}
        return weights[name]

    def _permute(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        count = arguments["self"].meta["val"].dim()
        dims = list(range(count))
        if name == "permute":
            dims = [dim % count for dim in arguments["dims"]]
        elif name == "t" and count == 2:
            dims = [1, 0]
        elif name == "transpose":
            first, second = arguments["dim0"], arguments["dim1"]
            dims[first], dims[second] = dims[second], dims[first]
        self._step(node, "permute", **{"in": self._name(arguments["self"]), "dims": dims})

    def _cat(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        dim = arguments.get("dim", 0) % node.meta["val"].dim()
        ins = [self._name(source) for source in arguments["tensors"]]
        if name == "stack":
            views: list[str] = []
            for number, (source, value) in enumerate(zip(arguments["tensors"], ins, strict=True)):
                shape = shape_of(source.meta["val"])
                views.append(f"{node.name}.{number}")
                self._steps.append(
                    {
                        "op": "view",
                        "out": views[-1],
                        "in": value,
                        "shape": [*shape[:dim], 1, *shape[dim:]],
                    }
                )
            ins = views
        self._step(node, "cat", ins=ins, dim=dim)

    def _pad(self, node: fx.Node, arguments: Mapping[str, Any]) -> None:
        """A constant before and behind the last dimension, as a cat."""
        before, behind, *others = arguments["pad"]
        if arguments.get("mode", "constant") != "constant" or others or min(before, behind) < 0:
            raise NotNative("aten::pad other than of the last dimension with a constant")
        value = node.meta["val"]
        ins = [self._name(arguments["self"])]
        for at, (width, name) in enumerate(((before, "before"), (behind, "behind"))):
            if width:
                shape = [*shape_of(value)[:-1], width]
                number = arguments.get("value") or 0
                dtype, out = dtype_name(value.dtype), f"{node.name}.{name}"
                self._steps.append(
                    {"op": "full", "out": out, "shape": shape, "value": number, "dtype": dtype}
                )
                ins.insert(len(ins) if at else 0, out)
        self._step(node, "cat", ins=ins, dim=value.dim() - 1)

    def _slice(self, node: fx.Node, arguments: Mapping[str, Any]) -> None:
        value = arguments["self"].meta["val"]
        dim = arguments.get("dim", 0) % value.dim()
        start, stop = arguments.get("start"), arguments.get("end")
        self._step(
            node,
            "slice",
            **{
                "in": self._name(arguments["self"]),
                "dim": dim,
                "start": 0 if start is None else self._size(start),
                "stop": size_of(value.shape[dim])
                if stop is None or stop == 2**63 - 1
                else self._size(stop),
                "step": arguments.get("step", 1),
            },
        )

    def _select(self, node: fx.Node, source: fx.Node, dim: int, index: Any) -> None:
        dim %= source.meta["val"].dim()
        self._one(node.name, self._name(source), source.meta["val"], dim, self._size(index))
        self._names[node.name] = node.name

    def _one(self, out: str, source: str, value: Tensor, dim: int, index: Any) -> None:
        """Steps that take one index of a dimension away."""
        if not isinstance(index, int) or index < 0:
            size = size_of(value.shape[dim])
            if not isinstance(index, int) or not isinstance(size, int):
                raise NotNative("aten::select by a size")
            index += size
        cut = f"{out}.cut"
        bounds = {"dim": dim, "start": index, "stop": index + 1, "step": 1}
        self._steps.append({"op": "slice", "out": cut, "in": source, **bounds})
        shape = shape_of(value)
        del shape[dim]
        self._steps.append({"op": "view", "out": out, "in": cut, "shape": shape})

    def _split(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        source, value = self._name(arguments["self"]), arguments["self"].meta["val"]
        dim = arguments.get("dim", 0) % value.dim()
        start = 0
        for number, piece in enumerate(node.meta["val"]):
            out = f"{node.name}.{number}"
            self._parts[node.name, number] = out
            if name == "unbind":
                self._one(out, source, value, dim, number)
                continue
            size = size_of(piece.shape[dim])
            if not isinstance(size, int):
                raise NotNative(f"aten::{name} along the batch")
            bounds = {"dim": dim, "start": start, "stop": start + size, "step": 1}
            self._steps.append({"op": "slice", "out": out, "in": source, **bounds})
            start += size

    def _gather(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        if name == "index_select":
            dim, index = self._dim(arguments), arguments["index"]
        else:
            given = [(dim, at) for dim, at in enumerate(arguments["indices"]) if at is not None]
            if len(given) != 1 or given[0][1].meta["val"].dtype == torch.bool:
                raise NotNative("aten::index with several indices or a mask")
            dim, index = given[0]
        source, at = self._name(arguments["self"]), self._name(index)
        shape = shape_of(index.meta["val"])
        if len(shape) == 1:
            self._step(node, "gather", **{"in": source, "dim": dim, "index": at})
            return
        # The index as one row of numbers, and its dimensions back in the result.
        flat, rows = f"{node.name}.index", f"{node.name}.rows"
        self._steps.append({"op": "view", "out": flat, "in": at, "shape": [_product(shape)]})
        self._steps.append({"op": "gather", "out": rows, "in": source, "dim": dim, "index": flat})
        self._step(node, "view", **{"in": rows, "shape": shape_of(node.meta["val"])})

    def _clamp(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        least, most = arguments.get("min"), arguments.get("max")
        if name == "relu":
            least = 0
        if isinstance(least, fx.Node) or isinstance(most, fx.Node):
            raise NotNative("aten::clamp by tensors")
        source = self._name(arguments["self"])
        self._step(node, "clamp", **{"in": source, "min": least, "max": most})

    def _arithmetic(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        if arguments.get("alpha", 1) != 1 or arguments.get("rounding_mode") is not None:
            raise NotNative(f"{name_of(node.target)} with a factor or rounding")
        a, b = self._operand(arguments["self"]), self._operand(arguments.get("other"))
        if name == "rsub":
            name, a, b = "sub", b, a
        self._step(node, "arithmetic", how=_ARITHMETIC[name], a=a, b=b)

    def _reduce(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        value = arguments["self"].meta["val"]
        given = arguments.get("dim")
        dims = [given] if isinstance(given, int) else list(given or range(value.dim()))
        dims = sorted(dim % value.dim() for dim in dims)
        if any(varies(value.shape[dim]) for dim in dims):
            raise NotNative(f"aten::{name} along the batch")
        self._step(
            node,
            name,
            **{
                "in": self._name(arguments["self"]),
                "dims": dims,
                "keep": bool(arguments.get("keepdim")),
            },
        )

    def _order(self, node: fx.Node, name: str, arguments: Mapping[str, Any]) -> None:
        value = arguments["self"].meta["val"]
        fields: dict[str, Any] = {
            "in": self._name(arguments["self"]),
            "dim": arguments.get("dim", -1) % max(value.dim(), 1),
        }
        if name == "topk":
            fields |= {"k": self._size(arguments["k"]), "largest": arguments.get("largest", True)}
        else:
            fields |= {
                "descending": bool(arguments.get("descending", False)),
                "stable": bool(arguments.get("stable", False)),
            }
        outs = [f"{node.name}.values", f"{node.name}.positions"]
        self._parts |= {(node.name, number): out for number, out in enumerate(outs)}
        self._steps.append({"op": name, "out": outs, **fields})


def _product(sizes: list[Any]) -> Any:
    count: Any = 1
    for size in sizes:
        count = size if count == 1 else ["*", count, size]
    return count


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node by their names in the schema, with the defaults of the schema."""
    schema: Any = schema_of(node.target).arguments
    found: dict[str, Any] = {
        argument.name: argument.default_value
        for argument in schema
        if argument.has_default_value() and argument.default_value is not None
    }
    found |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return found | node.kwargs
