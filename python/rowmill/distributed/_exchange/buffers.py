"""Memory that messages are packed into and arrive in, kept from step to step."""

from __future__ import annotations

import torch
from torch import Tensor

_ROOM = 4
"""A buffer that must grow gets a quarter more than is asked for."""


class Buffers:
    """Buffers of one exchange, by name and lane. They are of its thread, and what lies in one is gone with its next use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, lane: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """So many elements, whatever is in them."""
        kept = self._kept.get((name, lane))
        if kept is None or len(kept) < size:
            kept = self._kept[name, lane] = torch.empty(size + size // _ROOM, dtype=dtype)
        return kept[:size]

    @property
    def bytes_held(self) -> dict[str, int]:
        """Bytes of the buffers of each name."""
        held: dict[str, int] = {}
        for (name, _), buffer in self._kept.items():
            held[name] = held.get(name, 0) + buffer.nbytes
        return held
