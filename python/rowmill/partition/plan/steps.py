"""The steps of a plan while it is written, and the names of the values that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx

from rowmill.partition.operators import name_of, schema_of
from rowmill.partition.plan.format import NotNative, Step, size_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


class Steps:
    """Steps of the part that a program holds.

    Attributes:
        written: The steps so far.
        weights: Names in the file of weights, by node.
        names: Names of values, by node.
        parts: Names of the results of nodes that have several, by node and number.
    """

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        self._program = program
        self.weights = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self.written: list[Step] = []
        self.names: dict[str, str] = {}
        self.parts: dict[tuple[str, int], str] = {}

    def name(self, node: fx.Node) -> str:
        """The name of the value of a node. The first request for a weight adds a step that makes it."""
        if node.name not in self.names:
            if node.name not in self.weights:
                raise NotNative(f"{node.name}, a {node.op}")
            self.add(node, "weight", name=self.weights[node.name])
        return self.names[node.name]

    def add(self, node: fx.Node, op: str, **fields: Any) -> None:
        """Add the step that makes the value of a node. Field `source` is called `in` in the plan."""
        self.names[node.name] = node.name
        self.add_value(node.name, op, **fields)

    def add_value(self, out: str | list[str], op: str, **fields: Any) -> None:
        """Add a step whose results are values of no node."""
        if "source" in fields:
            fields = {"in": fields.pop("source"), **fields}
        self.written.append({"op": op, "out": out, **fields})

    def take_part(self, node: fx.Node) -> None:
        """Name the result that a node takes of another node."""
        source, number = node.args
        assert isinstance(source, fx.Node), "parts are taken of results"
        assert isinstance(number, int), "parts have numbers"
        if (source.name, number) not in self.parts:
            raise NotNative(f"result {number} of {name_of(source.target)}")
        self.names[node.name] = self.parts[source.name, number]

    def operand(self, value: Any) -> Any:
        """The name of a value, or a number."""
        return self.name(value) if isinstance(value, fx.Node) else {"number": value}

    def weight(self, node: fx.Node) -> Tensor:
        """The tensor of a weight."""
        values: dict[str, Any] = {**self._program.state_dict, **self._program.constants}
        return values[self.weights[node.name]]


def size_given(size: Any) -> Any:
    """A size that an operator is given, as JSON."""
    return size_of(size.meta["val"]) if isinstance(size, fx.Node) else size


def dim_given(arguments: dict[str, Any]) -> int:
    """The dimension that an operator is given, counted from the first."""
    return arguments["dim"] % max(arguments["self"].meta["val"].dim(), 1)


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node by their names in the schema, with the defaults of the schema."""
    schema: Any = schema_of(node.target).arguments
    found: dict[str, Any] = {
        argument.name: argument.default_value
        for argument in schema
        if argument.has_default_value() and argument.default_value is not None
    }
    found |= {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
    return found | node.kwargs
