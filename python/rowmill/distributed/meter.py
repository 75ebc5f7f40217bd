"""Who is told when a collective begins, and when this rank waits for one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Meter:
    """Does nothing; a benchmark derives what measures from it.

    What travels while nobody waits for it is hidden behind work, so the two calls tell hidden from exposed.
    """

    def begun(self, leg: str, work: object) -> None:
        """A collective of torch.distributed is on its way.

        Args:
            leg: What it carries: a `Leg` of an exchange, or a caller's own word.
            work: Its `torch.distributed.Work`.
        """

    def waiting(self, leg: str, work: object = None) -> AbstractContextManager[object]:
        """Inside, this thread does nothing but wait for all of this leg that is on its way, or for this work of it."""
        return nullcontext()
