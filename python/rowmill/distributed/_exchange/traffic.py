"""What an exchange puts on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Literal

Leg = Literal["counts", "keys", "rows", "gradients"]
"""A part of an exchange, in the order of time."""


@dataclass
class Traffic:
    """Rounds and bytes of this rank since the last `reset`, by part of the exchange.

    A round is one collective call. Bytes are those sent to other ranks: what a rank owns itself does not travel. Counts
    and the words by which ranks say that they are well are in `counts`.
    """

    rounds: dict[Leg, int] = field(default_factory=dict[Leg, int])
    bytes_sent: dict[Leg, int] = field(default_factory=dict[Leg, int])
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, leg: Leg, sent: int) -> None:
        """Count one round; threads of a pipeline count into one."""
        with self._lock:
            self.rounds[leg] = self.rounds.get(leg, 0) + 1
            self.bytes_sent[leg] = self.bytes_sent.get(leg, 0) + sent

    def reset(self) -> None:
        """Begin anew."""
        with self._lock:
            self.rounds.clear()
            self.bytes_sent.clear()

    @property
    def rounds_total(self) -> int:
        """Of all parts."""
        return sum(self.rounds.values())

    @property
    def bytes_total(self) -> int:
        """Of all parts."""
        return sum(self.bytes_sent.values())
