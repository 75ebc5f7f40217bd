"""Measure where the time of a step goes: exclusive phases of this thread, and collectives that overlap with them."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rowmill.distributed.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

OTHER = "other"
"""Name for time outside of all phases."""


@dataclass(eq=False)
class _Travelling:
    """A collective in flight. Its end is known when it is waited for, or earlier if torch reports it."""

    work: object
    begin: float
    end: float | None = None


@dataclass
class Times:
    """Times of a number of steps, in seconds.

    Attributes:
        steps: Number of steps.
        step_s: Time of each step.
        phase_s: Work of this thread by phase. With `exposed_s` it adds up to the total of all steps.
        exposed_s: Time spent waiting for collectives, by collective.
        total_s: Time in which at least one collective of a kind was in flight.
    """

    step_s: list[float] = field(default_factory=list[float])
    phase_s: dict[str, float] = field(default_factory=dict[str, float])
    exposed_s: dict[str, float] = field(default_factory=dict[str, float])
    total_s: dict[str, float] = field(default_factory=dict[str, float])


class Timeline(Meter):
    """Measures the time of one thread.

    The time of a nested phase does not count for the outer phase. A wait counts as exposed only while a collective it waits
    for is in flight, so exposed time never exceeds total time.

    Attributes:
        times: Times of the steps so far.
        settle: Called before the clock is read, if not None, to wait for work on another device.
        lost: Whether a wait ended with an error, for example because another rank has ended.
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
        """Measure one step; phases and collectives must be inside."""
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
            # A collective that is still in flight counts in the next step too, from its start.
            self._travelling[leg] = [one for one in travelled if one.end is None]

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Measure a phase of work of this thread."""
        with self._inside(self.times.phase_s, name):
            yield

    def switch(self, name: str) -> None:
        """End the innermost phase and begin another in its place."""
        self._lap()
        self._stack[-1] = (self.times.phase_s, name)

    def begun(self, leg: str, work: Any) -> None:
        """Record that a collective has begun."""
        one = _Travelling(work, time.perf_counter())
        self._travelling.setdefault(leg, []).append(one)

        def ended(_: object) -> None:
            if one.end is None:
                one.end = time.perf_counter()

        work.get_future().add_done_callback(ended)

    @contextmanager
    def waiting(self, leg: str, work: object = None) -> Generator[None]:
        """Measure waiting for `work`, or for all collectives of a kind in flight."""
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
    """The total length of the union of intervals.

    Examples:
        >>> covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
        4.0
    """
    total, reach = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, reach), 0.0)
        reach = max(reach, end)
    return total
