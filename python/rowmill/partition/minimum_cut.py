"""The rule `bytes`: of all placements the one whose request has the fewest bytes, a minimum s-t cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rowmill._extras import extra

with extra("train"):
    import networkx

if TYPE_CHECKING:
    from rowmill.partition.graph import Graph
    from rowmill.partition.placement import Parts

_CPU, _DENSE = ("side", "cpu"), ("side", "dense")


def minimum_cut(graph: Graph, parts: Parts) -> set[str]:
    """The operators of the dense half. Of cuts with equal bytes, the one with the most dense operators.

    A value is an edge from its operator to a separate node, with its bytes as capacity. From this node an edge without a
    limit leads to each operator that takes the value, so a value with many consumers is counted once.
    """
    graphs: Any = networkx
    network = graphs.DiGraph()
    network.add_nodes_from([_CPU, _DENSE])
    for operator in graph.operators:
        name = ("operator", operator.name)
        if operator.name in parts.fixed:
            network.add_edge(_CPU, name)
        elif operator.name in parts.behind:
            network.add_edge(name, _DENSE)
        for value, size in operator.results.items():
            network.add_edge(name, ("value", value), capacity=size)
        if operator.name not in parts.post:
            for value in operator.sources:
                network.add_edge(("value", value), name)
    cpu = _reached(graphs.algorithms.flow.preflow_push(network, _CPU, _DENSE))
    above = graph.upstream(parts.behind) - parts.fixed
    return {name for name in above if ("operator", name) not in cpu}


def _reached(residual: Any) -> set[tuple[str, str]]:
    """Nodes that a minimum flow still reaches from the CPU: the smallest CPU side of all minimum cuts."""
    found, waiting = {_CPU}, [_CPU]
    while waiting:
        for node, edge in residual[waiting.pop()].items():
            if edge["capacity"] > edge["flow"] and node not in found:
                found.add(node)
                waiting.append(cast("tuple[str, str]", node))
    return found
