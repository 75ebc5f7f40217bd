"""Splits a captured program by a placement into programs for the CPU, the dense half, and the CPU again.

Each part has the same operators in the same order, traced once more by torch.export, so its results are bit-identical to
those of the unsplit program. Values that depend on weights alone are computed once, here, and become weights of their part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rowmill.ops.interaction import reference
from rowmill.partition.capture import source_line
from rowmill.partition.operators import name_of
from rowmill.partition.subgraph import Constants, Subgraph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx
    from torch.export import ExportedProgram

    from rowmill.partition.capture import Captured, Example
    from rowmill.partition.placement import Placement
    from rowmill.partition.subgraph import Replacement


@dataclass(frozen=True)
class Part:
    """One program of a split.

    Attributes:
        program: Takes `inputs` in this order and returns `outputs` as a tuple.
        inputs: Names of values.
        outputs: Names of values.
    """

    program: ExportedProgram
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, given the inputs by name, which a message makes contiguous."""
        # Guards of torch.export refuse sizes below 2, for which the graph holds as well.
        module = self.program.module(check_guards=False)
        with torch.no_grad():
            results = module(*(values[name].contiguous() for name in self.inputs))
        return dict(zip(self.outputs, results, strict=True))


@dataclass(frozen=True)
class Split:
    """A model in parts.

    Attributes:
        captured: The program that was split.
        placement: Where its operators run.
        cpu: Runs before the request; None if the request sends the inputs unchanged.
        dense: The dense half; None if it has no operators.
        post: Runs after the reply; None if there are no operators after it.
        outputs: Names of the outputs of the model, in its order.
        warnings: Notes about unusual properties, one sentence each.
    """

    captured: Captured
    placement: Placement
    cpu: Part | None
    dense: Part | None
    post: Part | None
    outputs: tuple[Any, ...]
    warnings: tuple[str, ...]

    def values(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Every value that a part takes or makes, by name, given the inputs."""
        values = dict(zip(self.captured.inputs, tensors, strict=True))
        for part in (self.cpu, self.dense, self.post):
            if part is not None:
                values |= part.run(values)
        return values

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run all parts; returns the result that the module would return."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        values = self.values(leaves)
        results = [values[name] if isinstance(name, str) else name for name in self.outputs]
        spec = self.captured.program.call_spec.out_spec
        assert spec is not None, "a traced program knows the structure of its results"
        return pytree.tree_unflatten(results, spec)

    def portable_dense(self, example: Example) -> Part:
        """The dense half without operators of rowmill: for a GPU and for AOTInductor."""
        assert self.dense is not None, "there is a dense half"
        return self.again(self.dense, example, _definition)

    def again(self, part: Part, example: Example, replace: Replacement) -> Part:
        """A part with other functions in place of some of its operators."""
        values = self.values(self.captured.flat(example))
        constants = Constants(self.captured.program)
        graph = Subgraph(self.captured, constants, part.inputs, replace=replace)
        graph.compute(part.outputs)
        return Part(graph.export(values), part.inputs, part.outputs)


def split(captured: Captured, placement: Placement, example: Example) -> Split:
    """Cut a program in parts.

    Args:
        captured: The program.
        placement: Where its operators run.
        example: The nominal request; parts are traced with its values.
    """
    constants = Constants(captured.program)
    graph, parts = captured.graph, placement.parts
    outputs = tuple(captured.program.graph_signature.user_outputs)
    makers = {value: item.name for item in graph.operators for value in item.results}
    named = [name for name in outputs if isinstance(name, str)]
    late = [name for name in named if makers.get(name) in parts.post]

    # From the outputs towards the inputs: a later part says what an earlier one must give.
    reply = tuple(placement.reply)
    dense = Subgraph(captured, constants, tuple(placement.crossing))
    dense.compute(reply)
    kept = [
        value
        for item in graph.operators
        if item.name in parts.post
        for value in item.sources
        if value not in reply and makers[value] not in parts.post
    ]
    first = [
        name
        for name in dict.fromkeys([*(dense.inputs if reply else ()), *kept, *named])
        if name not in (*reply, *captured.inputs, *late)
    ]
    values = dict(zip(captured.inputs, captured.flat(example), strict=True))
    made: list[Part | None] = []
    plan: list[tuple[Subgraph, tuple[str, ...]]] = []
    if first:
        cpu = Subgraph(captured, constants, captured.inputs)
        cpu.compute(first)
        plan.append((cpu, tuple(first)))
    if reply:
        plan.append((dense, reply))
    if late:
        taken = dict.fromkeys([*captured.inputs, *reply, *kept])
        post = Subgraph(captured, constants, tuple(taken))
        post.compute(late)
        plan.append((post, tuple(late)))
    for subgraph, results in plan:
        part = Part(subgraph.export(values), tuple(subgraph.inputs), results)
        values |= part.run(values)
        made.append(part)
    found = iter(made)
    return Split(
        captured,
        placement,
        next(found) if first else None,
        next(found) if reply else None,
        next(found) if late else None,
        outputs,
        _warnings(captured, placement),
    )


def _definition(node: fx.Node) -> Callable[..., Any] | None:
    return reference.interaction if name_of(node.target) == "rowmill::interaction" else None


def _warnings(captured: Captured, placement: Placement) -> tuple[str, ...]:
    nodes = {node.name: node for node in captured.program.graph.nodes}
    return tuple(
        f"{name_of(nodes[name].target)} at {source_line(nodes[name])} stays on the CPU: a lookup or a CPU-only operator "
        "depends on it"
        for name in sorted(placement.parts.cpu_seeds)
    )
