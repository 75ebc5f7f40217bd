"""Traffic counters of an exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

Leg = Literal["counts", "keys", "rows", "gradients"]
"""The parts of an exchange, in the order of time."""


@dataclass
class Traffic:
    """Rounds and bytes of this rank since the last `reset`, by part of the exchange.

    A round is one collective call. Bytes are those sent to other ranks, without the rank's own rows. The leg `counts`
    includes status words.
    """

    rounds: dict[Leg, int] = field(default_factory=dict[Leg, int])
    bytes_sent: dict[Leg, int] = field(default_factory=dict[Leg, int])
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, leg: Leg, sent: int) -> None:
        """Count one round; thread-safe, because the threads of a pipeline share the counters."""
        with self._lock:
            self.rounds[leg] = self.rounds.get(leg, 0) + 1
            self.bytes_sent[leg] = self.bytes_sent.get(leg, 0) + sent

    def reset(self) -> None:
        """Set all counters to 0."""
        with self._lock:
            self.rounds.clear()
            self.bytes_sent.clear()

    @property
    def rounds_total(self) -> int:
        """Rounds of all parts."""
        return sum(self.rounds.values())

    @property
    def bytes_total(self) -> int:
        """Bytes sent in all parts."""
        return sum(self.bytes_sent.values())
