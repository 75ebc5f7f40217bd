"""Where the time of a step goes: exclusive phases of this thread, and collectives that travel beside them."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rowmill.distributed.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

OTHER = "other"
"""What belongs to no phase."""


@dataclass(eq=False)
class _Travelling:
    """A collective; its end is known when it is waited for, or when torch says so before that."""

    work: object
    begin: float
    end: float | None = None


@dataclass
class Times:
    """Seconds of some steps.

    Attributes:
        steps: How many.
        step_s: Of each step.
        phase_s: Of this thread's work, by phase. With `exposed_s` it sums up to the steps.
        exposed_s: Waiting for collectives, by leg.
        total_s: In which at least one collective of a leg was on its way.
    """

    step_s: list[float] = field(default_factory=list[float])
    phase_s: dict[str, float] = field(default_factory=dict[str, float])
    exposed_s: dict[str, float] = field(default_factory=dict[str, float])
    total_s: dict[str, float] = field(default_factory=dict[str, float])


class Timeline(Meter):
    """Takes the time of one thread.

    A phase within a phase is not counted in the outer one. A wait counts as exposed while something it waits for
    was on its way; so exposed is never more than total.

    Attributes:
        times: Of the steps so far.
        settle: Called before the clock is read, if any: work that was begun on another device must have ended.
        lost: Whether a wait ended by an error, as it does when another rank is gone.
    """

    def __init__(self) -> None:
        self.times = Times()
        self.settle: Callable[[], object] | None = None
        self.lost = False
        self._stack: list[tuple[dict[str, float], str]] = []
        self._since = 0.0
        self._travelling: dict[str, list[_Travelling]] = {}

    @contextmanager
    def step(self) -> Generator[None]:
        """One step; phases and collectives belong inside."""
        begin = self._now()
        self._since = begin
        self._stack = [(self.times.phase_s, OTHER)]
        yield
        self._lap()
        self._stack = []
        self.times.step_s.append(self._since - begin)
        for leg, travelled in self._travelling.items():
            spans = [(max(one.begin, begin), one.end or self._since) for one in travelled]
            self.times.total_s[leg] = self.times.total_s.get(leg, 0.0) + covered(spans)
            # What is still on its way counts in the next step as well, from there on.
            self._travelling[leg] = [one for one in travelled if one.end is None]

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Work of this thread."""
        with self._inside(self.times.phase_s, name):
            yield

    def switch(self, name: str) -> None:
        """End the innermost phase, and begin this one in its place."""
        self._lap()
        self._stack[-1] = (self.times.phase_s, name)

    def begun(self, leg: str, work: Any) -> None:
        """A collective is on its way."""
        one = _Travelling(work, time.perf_counter())
        self._travelling.setdefault(leg, []).append(one)

        def ended(_: object) -> None:
            if one.end is None:
                one.end = time.perf_counter()

        work.get_future().add_done_callback(ended)

    @contextmanager
    def waiting(self, leg: str, work: object = None) -> Generator[None]:
        """Waiting for all of a leg that is on its way, or for this work of it."""
        awaited = [
            one
            for one in self._travelling.get(leg, ())
            if one.end is None and (work is None or one.work is work)
        ]
        counts = (
            self._inside(self.times.exposed_s, leg) if awaited and self._stack else nullcontext()
        )
        try:
            with counts:
                yield
        except Exception:
            self.lost = True
            raise
        for one in awaited:
            one.end = self._since

    @contextmanager
    def _inside(self, of: dict[str, float], name: str) -> Generator[None]:
        self._lap()
        self._stack.append((of, name))
        yield
        self._lap()
        self._stack.pop()

    def _lap(self) -> None:
        now = self._now()
        of, name = self._stack[-1]
        of[name] = of.get(name, 0.0) + now - self._since
        self._since = now

    def _now(self) -> float:
        if self.settle is not None:
            self.settle()
        return time.perf_counter()


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what at least one of the spans covers.

    Examples:
        >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
        4.0
    """
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, reach), 0.0)
        reach = max(reach, end)
    return total
