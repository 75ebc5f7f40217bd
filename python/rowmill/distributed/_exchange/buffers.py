"""Send and receive buffers of messages, kept between steps."""

from __future__ import annotations

import torch
from torch import Tensor

_ROOM = 4
"""A buffer that must grow gets 1/4 more than the requested size."""


class Buffers:
    """Buffers of one exchange, by name and lane, for one thread. The next `take` of a buffer overwrites it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, lane: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A buffer of `size` uninitialised elements."""
        kept = self._kept.get((name, lane))
        if kept is None or len(kept) < size:
            kept = self._kept[name, lane] = torch.empty(size + size // _ROOM, dtype=dtype)
        return kept[:size]

    @property
    def bytes_held(self) -> dict[str, int]:
        """Bytes of all buffers, by name."""
        held: dict[str, int] = {}
        for (name, _), buffer in self._kept.items():
            held[name] = held.get(name, 0) + buffer.nbytes
        return held
