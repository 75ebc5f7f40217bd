"""Capture: a module in eval mode becomes one graph for batches of any size, and the graph that rules place.

torch.export traces the module with the first example; sizes 0 and 1 would become constants, so examples have at least two rows.
"""

from __future__ import annotations

import sysconfig
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from rowmill.errors import CannotExport, InvalidInput
from rowmill.integrations.torchrec.per_key import definitions
from rowmill.partition.graph import Graph, Operator
from rowmill.partition.operators import Kind, Operators, name_of

_TORCH = Path(torch.__file__).parent

Example = tuple[Any, ...] | Mapping[str, Any]
"""Arguments of one call of the module, by position or by name."""

Pass = Callable[[ExportedProgram], ExportedProgram]
"""A change of the graph that the caller wants before the partition."""


@dataclass(frozen=True)
class Captured:
    """A traced module.

    Attributes:
        program: Its graph, without changes in place.
        graph: The same for rules, with bytes at the nominal request: the first example.
        inputs: Names of the inputs that are tensors, in the order of the flattened arguments.
        constant: Names of nodes that depend on no input.
    """

    program: ExportedProgram
    graph: Graph
    inputs: tuple[str, ...]
    constant: frozenset[str]

    def flat(self, example: Example) -> list[Tensor]:
        """The tensors of a call, in the order of `inputs`."""
        return [leaf for leaf in _leaves(example) if isinstance(leaf, Tensor)]


def capture(
    module: nn.Module,
    examples: Sequence[Example],
    *,
    passes: Sequence[Pass] = (),
    operators: Operators | None = None,
) -> Captured:
    """Trace a module.

    Args:
        module: Traced in eval mode; its own mode does not change.
        examples: Calls of the module. Dimension 0 of every tensor may have any size at run time.
        passes: Applied to the traced program in this order.
        operators: The kinds of operators.

    Raises:
        CannotExport: A graph cannot represent the module; names the operator and the source line.
    """
    if not examples:
        raise InvalidInput("examples are empty: give at least one call of the module")
    program = _trace(module, examples[0])
    for change in passes:
        program = change(program)
        if not isinstance(program, ExportedProgram):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(
                f"the pass {_name(change)} returned a {type(program).__name__}; it must return an ExportedProgram"
            )
    # Operators of torch stay whole, changes in place become results.
    program = program.run_decompositions(definitions())
    # Some operators of torch take other ways, with other bits, where weights want gradients.
    for name, value in program.state_dict.items():
        if isinstance(value, nn.Parameter):
            program.state_dict[name] = nn.Parameter(value.detach(), requires_grad=False)
    _refuse_mutations(program)
    _refuse_fixed_batch(program, module)
    tensors = [leaf for leaf in _leaves(examples[0]) if isinstance(leaf, Tensor)]
    inputs = tuple(
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT and spec.arg.name in _tensor_placeholders(program)
    )
    sizes = _sizes(program, dict(zip(inputs, tensors, strict=True)))
    constant = _constant(program)
    graph = _graph(program, inputs, constant, sizes, operators or Operators())
    return Captured(program, graph, inputs, constant)


def _trace(module: nn.Module, example: Example) -> ExportedProgram:
    args, kwargs = ((), dict(example)) if isinstance(example, Mapping) else (example, {})
    for leaf in _leaves(example):
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] < 2:
            raise InvalidInput(
                f"an example has a tensor of shape {list(leaf.shape)}: torch.export would fix sizes 0 and 1; give examples "
                "with at least 2 rows"
            )
    shapes: Any = pytree.tree_map(_varying, (args, kwargs))
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Recurrent layers of torch do that, and a traced program has its own weights.
            warnings.filterwarnings(
                "ignore", message="The tensor attributes? .* assigned during export"
            )
            program = torch.export.export(
                module,
                args,
                kwargs,
                dynamic_shapes=(*shapes[0], *shapes[1].values()),
                strict=False,
            )
    except Exception as error:
        raise CannotExport(
            f"cannot export {type(module).__name__}: {_line_of(error)}: {_first_line(error)}"
        ) from error
    finally:
        for part, training in modes.items():
            part.training = training
    return program


def _varying(leaf: Any) -> dict[int, Any] | None:
    """Which sizes of an argument vary."""
    return {0: Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() else None


def _leaves(example: Example) -> list[Any]:
    call: Any = ((), dict(example)) if isinstance(example, Mapping) else (example, {})
    return pytree.tree_leaves(call)


def _name(function: Any) -> str:
    return getattr(function, "__name__", repr(function))


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _line_of(error: BaseException) -> str:
    """The innermost line of a traceback outside torch, with its text, which shows the operator."""
    foreign = [_TORCH, Path(sysconfig.get_path("stdlib"))]
    here = Path(__file__)
    frames = [
        frame
        for chained in (error.__cause__, error.__context__, error)
        if chained is not None
        for frame in traceback.extract_tb(chained.__traceback__)
        if not any(folder in Path(frame.filename).parents for folder in foreign)
        and Path(frame.filename) != here
        and not frame.filename.startswith("<")
    ]
    if not frames:
        return "an unknown line"
    return f"{frames[-1].filename}:{frames[-1].lineno}, `{frames[-1].line}`"


def source_line(node: fx.Node) -> str:
    """The line of the model that a node comes from."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [line for line in lines if line.startswith("File ") and str(_TORCH) not in line]
    if not places:
        return "an unknown line"
    file, line = places[-1].split(", ")[:2]
    return f"{file.removeprefix('File ').strip(chr(34))}:{line.removeprefix('line ')}"


def _refuse_fixed_batch(program: ExportedProgram, module: nn.Module) -> None:
    sizes = {
        node.name: node.meta["val"].shape[0]
        for node in program.graph.nodes
        if node.name in _tensor_placeholders(program) and node.meta["val"].dim()
    }
    if sizes and not any(varies(size) for size in sizes.values()):
        raise CannotExport(
            f"cannot export {type(module).__name__}: its inputs have fixed sizes {sizes} in dimension 0, because forward "
            "reads a size as a number; use x.shape[0] in place of len(x) or int(x.shape[0])"
        )


def _refuse_mutations(program: ExportedProgram) -> None:
    changed = {
        **program.graph_signature.buffers_to_mutate,
        **program.graph_signature.user_inputs_to_mutate,
    }
    nodes = {node.name: node for node in program.graph.nodes}
    for result, target in changed.items():
        node = nodes[result]
        raise CannotExport(
            f"cannot export: {name_of(node.target)} at {source_line(node)} changes {target!r}, but a served model must not "
            "change state; compute a new tensor instead"
        )


def _tensor_placeholders(program: ExportedProgram) -> set[str]:
    wanted = set(program.graph_signature.user_inputs)
    return {
        str(node.name)
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in wanted
        and isinstance(node.meta.get("val"), Tensor)
    }


def _sizes(program: ExportedProgram, tensors: Mapping[str, Tensor]) -> dict[Any, int]:
    """Symbols of the graph with their values at the nominal request."""
    values: dict[Any, int] = {}
    for node in program.graph.nodes:
        if node.name not in tensors:
            continue
        for size, value in zip(node.meta["val"].shape, tensors[node.name].shape, strict=True):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                values[size.node.expr] = value
    return values


def _constant(program: ExportedProgram) -> frozenset[str]:
    """Nodes that depend on no input and no size: weights and what is computed from weights alone."""
    inputs = set(program.graph_signature.user_inputs)
    found: set[str] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name not in inputs or not isinstance(node.meta.get("val"), Tensor):
                found.add(str(node.name))
        elif (
            node.op == "call_function"
            and not _is_random(node)
            and all(source.name in found for source in node.all_input_nodes)
        ):
            found.add(str(node.name))
    return frozenset(found)


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _graph(
    program: ExportedProgram,
    inputs: Sequence[str],
    constant: frozenset[str],
    sizes: Mapping[Any, int],
    operators: Operators,
) -> Graph:
    found: list[Operator] = []
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            if node.name in inputs:
                found.append(Operator(node.name, Kind.INPUT, (), {node.name: _bytes(value, sizes)}))
            continue
        # An assertion has no value.
        if node.op != "call_function" or node.name in constant or value is None:
            continue
        if is_size(node) or is_part(node):
            continue
        _refuse_data_dependence(node, sizes)
        taken = [
            source.name
            for source in node.all_input_nodes
            if source.name not in constant and not is_size(source)
        ]
        results = (
            {
                user.name: _bytes(user.meta["val"], sizes)
                for user in node.users
                if is_part(user) and isinstance(user.meta.get("val"), Tensor)
            }
            if isinstance(value, tuple | list)
            else {node.name: _bytes(value, sizes)}
        )
        found.append(Operator(node.name, operators.kind(node.target), tuple(taken), results))
    names = {value for operator in found for value in operator.results}
    outputs = {name for name in program.graph_signature.user_outputs if name in names}
    return Graph(tuple(found), frozenset(outputs))


def is_size(node: fx.Node) -> bool:
    """Whether a node is a size, or computed from sizes."""
    value = node.meta.get("val")
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def varies(size: Any) -> bool:
    """Whether a size is another one in another request; a symbol may stand for a number."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def is_part(node: fx.Node) -> bool:
    """Whether a node takes one of several results of an operator."""
    return node.op == "call_function" and name_of(node.target) == "getitem"


def _refuse_data_dependence(node: fx.Node, sizes: Mapping[Any, int]) -> None:
    values: Any = node.meta.get("val")
    for value in cast("list[Any]", values if isinstance(values, tuple | list) else [values]):
        if not isinstance(value, Tensor):
            continue
        for size in value.shape:
            if isinstance(size, torch.SymInt) and not size.node.expr.free_symbols <= set(sizes):
                raise CannotExport(
                    f"cannot export: {name_of(node.target)} at {source_line(node)} has a result whose size {size} depends "
                    "on data; sizes may depend only on the sizes of the inputs"
                )


def _bytes(value: Tensor, sizes: Mapping[Any, int]) -> int:
    count = 1
    for size in value.shape:
        expression: Any = size.node.expr if isinstance(size, torch.SymInt) else None
        count *= size if expression is None else int(expression.xreplace(dict(sizes)))
    return count * value.dtype.itemsize
