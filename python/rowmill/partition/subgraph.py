"""Subgraphs: the operators that compute some values of a program from others, as a separate graph with its weights.

Sizes are read from any input tensor of the subgraph that has them. If none has, an empty tensor with that many rows carries the
size in its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils._sympy.value_ranges import ValueRanges

from rowmill.errors import CannotExport
from rowmill.partition.capture import source_line, varies
from rowmill.partition.operators import name_of, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rowmill.partition.capture import Captured

_CARRIER = "size_"
"""Names of carriers: this, and the symbol of the size."""

Replacement = Callable[[fx.Node], Callable[..., Any] | None]
"""For a node, the function that takes its place, or None."""


class Constants:
    """The tensors of a program that depend on weights alone, each computed once."""

    def __init__(self, program: ExportedProgram) -> None:
        self._nodes = {node.name: node for node in program.graph.nodes}
        self._signature = program.graph_signature
        self._state: dict[str, Any] = {**program.state_dict, **program.constants}
        self._values: dict[str, Any] = {}

    def name(self, node: fx.Node) -> str:
        """The name of the tensor among the weights of a part."""
        signature = self._signature
        for names in (
            signature.inputs_to_parameters,
            signature.inputs_to_buffers,
            signature.inputs_to_lifted_tensor_constants,
        ):
            if node.name in names:
                return names[node.name]
        return f"folded.{node.name}"

    def value(self, node: fx.Node) -> Any:
        """The tensor or other value of a node."""
        if node.name not in self._values:
            self._values[node.name] = self._compute(node)
        return self._values[node.name]

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            value = self._state.get(self.name(node), node.meta.get("val"))
            return value.detach() if isinstance(value, Tensor) else value
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.value)
        target = cast("Callable[..., Any]", node.target)
        with torch.no_grad():
            value = target(*args, **kwargs)
        return value.contiguous() if isinstance(value, Tensor) else value


class Subgraph:
    """A graph under construction.

    Args:
        captured: The program that operators are copied from.
        constants: Of that program.
        inputs: Names of values that it takes. They come as arguments in this order.
        replace: What takes the place of operators.

    Attributes:
        inputs: The names, with those of size carriers behind.
    """

    def __init__(
        self,
        captured: Captured,
        constants: Constants,
        inputs: Sequence[str],
        *,
        replace: Replacement | None = None,
    ) -> None:
        self.inputs = list(inputs)
        self._constants = constants
        self._constant = captured.constant
        self._nodes = {node.name: node for node in captured.program.graph.nodes}
        self._symbols = {
            str(size): _expression(size)
            for name in captured.inputs
            for size in self._nodes[name].meta["val"].shape
        }
        self._replace = replace
        self._graph = fx.Graph()
        self._root: dict[str, Any] = {}
        self._copies: dict[str, Any] = {}
        self._shapes: dict[str, tuple[Any, ...]] = {}
        for name in inputs:
            self._take(name, self._shape(name))

    def compute(self, outputs: Iterable[str]) -> None:
        """End the graph with these values, or carriers of sizes, as a tuple."""
        results = [
            self._copy(self._nodes[name]) if name in self._nodes else self._carrier(name)
            for name in outputs
        ]
        self._graph.output(tuple(results))

    def export(self, values: Mapping[str, Tensor]) -> ExportedProgram:
        """Trace the graph with values of its inputs; sizes that varied in the program vary here."""
        module = fx.GraphModule(self._root or nn.Module(), self._graph)
        module.graph.eliminate_dead_code()
        module.recompile()
        module.eval()
        shapes = tuple(
            {dim: Dim.AUTO for dim, size in enumerate(self._shapes[name]) if _varies(size)}
            for name in self.inputs
        )
        # As a message brings them: contiguous, and none a view of another.
        arguments = tuple(
            values[name].detach().clone(memory_format=torch.contiguous_format)
            for name in self.inputs
        )
        with torch.no_grad():
            program = torch.export.export(module, arguments, dynamic_shapes=shapes)
        program = any_size(program.run_decompositions({}))
        self._check_sizes(program)
        return program

    def _shape(self, name: str) -> tuple[Any, ...]:
        """The sizes of a value, or of the carrier of a size."""
        if name in self._nodes:
            return tuple(_expression(size) for size in self._nodes[name].meta["val"].shape)
        return (self._symbols[name.removeprefix(_CARRIER)], 0)

    def _take(self, name: str, shape: tuple[Any, ...]) -> None:
        # A name of its own: operators that tracing adds may be called as a value of the program was.
        self._copies[name] = self._graph.placeholder(f"value_{name}")
        self._shapes[name] = shape

    def _copy(self, node: fx.Node) -> Any:
        if node.name not in self._copies:
            self._copies[node.name] = self._made(node)
        return self._copies[node.name]

    def _made(self, node: fx.Node) -> Any:
        if node.name in self._constant and not _is_view(node):
            value = self._constants.value(node)
            return self._weight(node, value) if isinstance(value, Tensor) else value
        if name_of(node.target) == "aten::sym_size":
            return self._size(_expression(node.meta["val"]))
        if node.op == "placeholder":
            raise AssertionError(f"{node.name} is no input of this part")
        function = None if self._replace is None else self._replace(node)
        if function is not None:
            args = fx.map_arg(node.args, self._copy)
            return self._graph.call_function(function, args)
        return self._graph.node_copy(node, self._copy)

    def _weight(self, node: fx.Node, value: Tensor) -> fx.Node:
        name = self._constants.name(node)
        trained = value.is_floating_point() and not name.startswith("folded.")
        self._root[name] = nn.Parameter(value, requires_grad=False) if trained else value
        return self._graph.get_attr(name)

    def _size(self, expression: Any) -> Any:
        """A node with the value of a size."""
        if not _varies(expression):
            return int(expression)
        for name, shape in self._shapes.items():
            if expression in shape:
                place = self._copies[name]
                return self._graph.call_function(
                    torch.ops.aten.sym_size.int, (place, shape.index(expression))
                )
        name = f"{_CARRIER}{expression}"
        with self._graph.inserting_before(next(iter(self._graph.nodes))):
            self._take(name, (expression, 0))
        # Placeholders keep the order of `inputs`.
        for earlier in self.inputs:
            self._copies[name].prepend(self._copies[earlier])
        self.inputs.append(name)
        return self._graph.call_function(torch.ops.aten.sym_size.int, (self._copies[name], 0))

    def _carrier(self, name: str) -> fx.Node:
        """An empty tensor with as many rows as the size that the name says."""
        size = self._size(self._symbols[name.removeprefix(_CARRIER)])
        return self._graph.call_function(
            torch.ops.aten.empty.memory_format,
            ([size, 0],),
            {"dtype": torch.uint8, "device": torch.device("cpu")},
        )

    def _check_sizes(self, program: ExportedProgram) -> None:
        """Raise if tracing has made a number of a size that varies."""
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        for name, traced in zip(self.inputs, program.graph_signature.user_inputs, strict=True):
            value = nodes[str(traced)].meta["val"]
            for dim, size in enumerate(self._shapes[name]):
                if _varies(size) and not varies(value.shape[dim]):
                    line = source_line(self._nodes[name]) if name in self._nodes else ""
                    raise CannotExport(
                        f"cannot export: dimension {dim} of {name} ({line}) varies with the batch, but operators that use "
                        f"it need {value.shape[dim]}"
                    )


def any_size(program: ExportedProgram) -> ExportedProgram:
    """Let every size be 0 or more: torch.export assumes at least 2, and so of three times a batch at least 6."""
    ranges = cast("dict[Any, Any]", program.range_constraints)
    for symbol in list(ranges):
        ranges[symbol] = ValueRanges(0, ranges[symbol].upper)
    return program


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _varies(expression: Any) -> bool:
    return bool(getattr(expression, "free_symbols", None))


def _is_view(node: fx.Node) -> bool:
    """Whether an operator returns its input with other strides: to keep the result would lose them."""
    schema = schema_of(node.target)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)
