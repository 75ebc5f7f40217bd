"""Hooks for benchmarks: called when a collective begins and while this rank waits for it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Meter:
    """Does nothing; a benchmark derives a class that measures.

    Communication during which this rank does not wait is overlapped with compute. The two hooks let a benchmark separate
    overlapped from exposed communication.
    """

    def begun(self, leg: str, work: object) -> None:
        """Called after a collective of torch.distributed was started.

        Args:
            leg: The data that it carries: a `Leg` of an exchange, or a name chosen by the caller.
            work: Its `torch.distributed.Work`.
        """

    def waiting(self, leg: str, work: object = None) -> AbstractContextManager[object]:
        """A context in which this thread only waits, for `work`, or if None for all started collectives of this leg."""
        return nullcontext()
