"""The graph that rules place: operators, the values they make, and the bytes of each value.

It knows nothing of torch, so that rules are tested on graphs of any shape. Weights, constants and sizes are not part of it:
both halves have them without a message.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rowmill.partition.operators import Kind


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        name: Its name in the graph.
        kind: What rules must know of it.
        sources: The values that it takes.
        results: The values that it makes, with their bytes at the nominal request.
    """

    name: str
    kind: Kind
    sources: tuple[str, ...]
    results: Mapping[str, int]


@dataclass(frozen=True)
class Graph:
    """Operators in topological order, and the values that are outputs of the model."""

    operators: tuple[Operator, ...]
    outputs: frozenset[str]
    _maker: dict[str, str] = field(init=False, repr=False, default_factory=dict[str, str])
    _producers: dict[str, set[str]] = field(
        init=False, repr=False, default_factory=dict[str, set[str]]
    )
    _consumers: dict[str, set[str]] = field(
        init=False, repr=False, default_factory=dict[str, set[str]]
    )

    def __post_init__(self) -> None:
        for operator in self.operators:
            self._maker.update(dict.fromkeys(operator.results, operator.name))
            self._producers[operator.name] = {self._maker[value] for value in operator.sources}
            self._consumers[operator.name] = set()
            for producer in self._producers[operator.name]:
                self._consumers[producer].add(operator.name)

    def of_kind(self, *kinds: Kind) -> set[str]:
        """Names of the operators of some kinds."""
        return {operator.name for operator in self.operators if operator.kind in kinds}

    def maker(self, value: str) -> str:
        """The operator that makes a value."""
        return self._maker[value]

    def producers(self, operator: str) -> set[str]:
        """The operators whose values an operator takes."""
        return self._producers[operator]

    def consumers(self, operator: str) -> set[str]:
        """The operators that take a value of an operator."""
        return self._consumers[operator]

    def upstream(self, operators: Iterable[str]) -> set[str]:
        """Operators and all that they depend on."""
        return _reached(operators, self._producers)

    def downstream(self, operators: Iterable[str]) -> set[str]:
        """Operators and all that depends on them."""
        return _reached(operators, self._consumers)

    def crossing(self, dense: set[str]) -> dict[str, int]:
        """Values that dense operators take and CPU operators make, with their bytes: the tensors of a request."""
        taken = {
            value
            for operator in self.operators
            if operator.name in dense
            for value in operator.sources
            if self._maker[value] not in dense
        }
        return {
            value: size
            for operator in self.operators
            for value, size in operator.results.items()
            if value in taken
        }

    def request_bytes(self, dense: set[str]) -> int:
        """Bytes that one nominal request sends to the dense half."""
        return sum(self.crossing(dense).values())


def _reached(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    found = set(start)
    waiting = deque(found)
    while waiting:
        for neighbour in edges[waiting.popleft()] - found:
            found.add(neighbour)
            waiting.append(neighbour)
    return found
