"""The rule `prism`: colour from the seeds, then send sources in place of larger tensors derived from them.

Yang et al., "GPU-Disaggregated Serving for Deep Learning Recommendation Models at Scale", NSDI 2025, section 4.1. The paper
colours depth-first; the order does not change which operators are reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rowmill.partition.graph import Graph
    from rowmill.partition.placement import Parts


def colour(graph: Graph, parts: Parts) -> set[str]:
    """Seeds, all operators behind them, and all operators above them that the CPU does not run.

    An operator above a seed has only such operators between the seed and itself, so colouring up from the seeds reaches it.
    Operators whose results only outputs use stay on the CPU, so that their results need not be sent back.
    """
    above = graph.upstream(parts.behind) - parts.needed - parts.fixed
    return above | parts.behind


def prism(graph: Graph, parts: Parts) -> set[str]:
    """Colour, and then let a source cross wherever tensors derived from it weigh more.

    The dense half computes the derived tensors again. Each exchange lowers the bytes of a request, so the number of exchanges
    is bounded by the number of values.
    """
    dense = colour(graph, parts)
    found = True
    while found:
        found = False
        sent = graph.request_bytes(dense)
        for operator in graph.operators:
            if operator.name in dense:
                continue
            again = dense | _between(graph, parts, dense, operator.name)
            weight = graph.request_bytes(again)
            if weight < sent:
                dense, sent, found = again, weight, True
    return dense


def _between(graph: Graph, parts: Parts, dense: set[str], source: str) -> set[str]:
    """Operators that derive what crosses from a source, if the dense half may run them all."""
    senders = {graph.maker(value) for value in graph.crossing(dense)}
    derived = graph.downstream([source]) - {source} - parts.fixed - parts.post
    # What lies behind a fixed operator is not derived from the source alone.
    barred = graph.downstream(graph.downstream([source]) & parts.fixed - {source})
    derived -= barred
    return derived & graph.upstream(senders & derived)
