"""Messages of floats for one leg of an exchange, sent chunk by chunk.

Each lane has two messages in flight: while one is sent, the caller processes the previous one and the next is packed. So a
lane needs memory for two of its chunks only. A lane of one chunk is sent at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rowmill.distributed._exchange.exchange import Exchange
    from rowmill.distributed._exchange.traffic import Leg
    from rowmill.distributed._liveness.whereabouts import Call
    from rowmill.distributed.ranks import Ranks

_AT_ONCE = 2
"""Messages of a lane in flight at a time."""


class Messages:
    """Messages to all ranks; the constructor sends the first messages of every lane.

    Args:
        exchange: The exchange with buffers, traffic and meter.
        ranks: The ranks, with the process group to use.
        call: The call that the messages belong to.
        leg: The leg of the exchange.
        lanes: The lane of each message; messages of one lane are adjacent.
        to: Per message, the number of floats to each rank.
        come: Per message, the number of floats from each rank.
        pack: Fills the message with the given number.
    """

    def __init__(
        self,
        exchange: Exchange,
        ranks: Ranks,
        call: Call,
        leg: Leg,
        lanes: Sequence[int],
        to: Sequence[list[int]],
        come: Sequence[list[int]],
        pack: Callable[[int, Tensor], None],
    ) -> None:
        self._exchange = exchange
        self._ranks, self._call = ranks, call
        self._leg: Leg = leg
        self._lanes = lanes
        self._to, self._come, self._pack = to, come, pack
        self._travelling: dict[int, tuple[Any, Tensor]] = {}
        for number in range(len(lanes)):
            if self._place(number) < _AT_ONCE:
                self._send(number)

    def arrivals(self) -> Iterator[Tensor]:
        """Yield each received message, flat float32; valid until the next is requested."""
        exchange, leg = self._exchange, self._leg
        for number, lane in enumerate(self._lanes):
            work, back = self._travelling.pop(number)
            self._wait(work)
            if back.dtype != torch.float32:
                wide = exchange.buffers.take(f"{leg} in", 0, len(back))
                back = wide.copy_(back.view(torch.bfloat16))
            yield back
            after = number + _AT_ONCE
            if after < len(self._lanes) and self._lanes[after] == lane:
                self._send(after)

    def drop(self) -> None:
        """Wait for the messages in flight and discard them; messages not yet sent are never sent."""
        for work, _ in self._travelling.values():
            self._wait(work)
        self._travelling.clear()

    def _wait(self, work: Any) -> None:
        with self._exchange.meter.waiting(self._leg, work):
            self._ranks.wait(work, self._call)

    def _place(self, number: int) -> int:
        """Position of a message within its lane."""
        return number - self._lanes.index(self._lanes[number])

    def _send(self, number: int) -> None:
        exchange, leg = self._exchange, self._leg
        to, come = self._to[number], self._come[number]
        take, narrow = exchange.buffers.take, exchange.rows == "bf16"
        buffer = _AT_ONCE * self._lanes[number] + self._place(number) % _AT_ONCE
        out = take(f"{leg} out", 0 if narrow else buffer, sum(to))
        self._pack(number, out)
        if narrow:
            # Gloo does not support bfloat16, so the bits are sent as float16.
            halves = take(f"{leg} out, narrow", buffer, len(out), torch.bfloat16).copy_(out)
            out = halves.view(torch.float16)
            back = take(f"{leg} in, narrow", buffer, sum(come), torch.float16)
        else:
            back = take(f"{leg} in", buffer, sum(come))
        ranks = self._ranks
        work = ranks.all_to_all(back, out, come, to)
        exchange.meter.begun(leg, work)
        exchange.traffic.add(leg, out.element_size() * (len(out) - to[ranks.rank]))
        self._travelling[number] = work, back
