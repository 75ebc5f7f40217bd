"""Where operators run: the constraints that hold under every rule, and the two rules by name.

A request visits the dense half at most once: CPU, dense half, CPU again. The parts of a graph, whatever the rule:

- *behind*: seeds and all operators that depend on them. The dense half runs it, up to the post-processing.
- *post*: CPU-only operators behind a seed that no seed and no lookup depends on, and all operators that depend on them.
- *fixed*: inputs, lookups and all other CPU-only operators: never in the dense half.
- *needed*: operators that lookups and fixed operators depend on. The CPU computes it, and the dense half may compute it again.
- All others run on either side. A rule chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rowmill.partition.colouring import prism
from rowmill.partition.minimum_cut import minimum_cut
from rowmill.partition.operators import Kind

if TYPE_CHECKING:
    from rowmill.partition.graph import Graph

Rule = Literal["prism", "bytes"]


@dataclass(frozen=True)
class Parts:
    """What holds under every rule; names of operators.

    Attributes:
        behind: The dense half must run these.
        post: The CPU runs these after the reply.
        fixed: The dense half must not run these.
        needed: The CPU runs these before the request, whether or not the dense half does too.
        cpu_seeds: Seeds that the CPU runs, because a lookup or a CPU-only operator depends on them.
    """

    behind: frozenset[str]
    post: frozenset[str]
    fixed: frozenset[str]
    needed: frozenset[str]
    cpu_seeds: frozenset[str]

    @classmethod
    def of(cls, graph: Graph) -> Parts:
        """The parts of a graph."""
        seeds, lookups = graph.of_kind(Kind.SEED), graph.of_kind(Kind.LOOKUP)
        needed = graph.upstream(lookups | graph.of_kind(Kind.INPUT))
        late: set[str] = set()
        for operator in graph.operators:
            if operator.kind is not Kind.CPU_ONLY or operator.name in needed:
                continue
            followed = graph.downstream([operator.name])
            if followed & (seeds - needed) or followed & lookups:
                needed |= graph.upstream([operator.name])
            else:
                late.add(operator.name)
        # Decided last: a seed that the CPU runs does not make what follows it wait for a reply.
        post = {name for name in late if graph.upstream([name]) & (seeds - needed)}
        needed |= graph.upstream(late - post)
        post = graph.downstream(post)
        fixed = lookups | graph.of_kind(Kind.INPUT) | (graph.of_kind(Kind.CPU_ONLY) - post)
        # A seed runs in one place.
        fixed |= seeds & needed
        behind = graph.downstream(seeds - needed) - post
        return cls(
            frozenset(behind),
            frozenset(post),
            frozenset(fixed),
            frozenset(needed),
            frozenset(seeds & needed),
        )


@dataclass(frozen=True)
class Placement:
    """A choice of a rule.

    Attributes:
        rule: Its name.
        parts: What holds under every rule.
        dense: Operators that the dense half runs.
        crossing: Values that a request sends, with their bytes.
        reply: Values that come back, with their bytes.
    """

    rule: Rule
    parts: Parts
    dense: frozenset[str]
    crossing: dict[str, int]
    reply: dict[str, int]


def place(graph: Graph, rule: Rule = "bytes") -> Placement:
    """Place a graph by a rule."""
    parts = Parts.of(graph)
    dense = prism(graph, parts) if rule == "prism" else minimum_cut(graph, parts)
    late = [operator for operator in graph.operators if operator.name in parts.post]
    wanted = graph.outputs.union(*(operator.sources for operator in late))
    reply = {
        value: size
        for operator in graph.operators
        if operator.name in parts.behind
        for value, size in operator.results.items()
        if value in wanted
    }
    return Placement(rule, parts, frozenset(dense), graph.crossing(dense), reply)
