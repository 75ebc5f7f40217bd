"""Messages between two ranks that use both directions of their link at once.

Gloo joins two ranks by one TCP connection per process group, and a receiver tells over the same connection that it is ready.
A rank that is late finds the other one ready, so it begins to send, and its own readiness waits behind its message: the two
messages take turns. In two process groups, one per direction, neither waits for the other.

Only two ranks use this, for large messages. Each of them knows the sizes of both messages, so they choose alike; more ranks
would need another message to choose, and messages of other pairs fill most of an idle direction (3 and 4 ranks gained 5 to 12 %
at 1 Gbit/s, while small messages became slower).
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BYTES_MIN = 256 << 10
"""Bytes of the smaller of two messages from which two groups are used.

At this size they take 2.8 ms in place of 3.8 at 1 Gbit/s, 21 in place of 36 at 100 Mbit/s, and 0.1 ms more over loopback. At
128 KiB they gain nothing at 1 Gbit/s and a tenth at 100 Mbit/s.
"""

_TURN = timedelta(seconds=0.2)
"""Longest wait for one of the two groups before the other's turn."""


class BothWays(dist.Work):
    """An all-to-all of two process groups: messages to higher ranks and to lower ranks go apart.

    Args:
        up: Process group for messages to higher ranks, and for what a rank sends to itself.
        down: Process group for messages to lower ranks.
        back, out, come, to: As in `Ranks.all_to_all`.
    """

    def __init__(
        self,
        up: dist.ProcessGroup,
        down: dist.ProcessGroup,
        back: Tensor,
        out: Tensor,
        come: Sequence[int],
        to: Sequence[int],
    ) -> None:
        super().__init__()
        rank, ranks = up.rank(), up.size()
        # Up goes what is for this rank and higher ones, and comes what is from this rank and lower ones.
        lower, higher = sum(to[:rank]), sum(come[: rank + 1])
        below, above = [0] * rank, [0] * (ranks - rank - 1)
        works = [
            dist.all_to_all_single(
                back[:higher],
                out[lower:],
                [*come[: rank + 1], *above],
                [*below, *to[rank:]],
                group=up,
                async_op=True,
            ),
            dist.all_to_all_single(
                back[higher:],
                out[:lower],
                [*below, 0, *come[rank + 1 :]],
                [*to[:rank], 0, *above],
                group=down,
                async_op=True,
            ),
        ]
        self._works = [cast("dist.Work", work) for work in works]

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait for both groups, at most `timeout`, or if zero until both have ended or failed.

        Raises:
            RuntimeError: A message failed, or did not arrive in time.
        """
        began, travelling = time.monotonic(), list(self._works)
        # The end of a rank may fail one of its two messages only, so wait for both in turn.
        while travelling:
            work = travelling.pop(0)
            tried = time.monotonic()
            try:
                work.wait(_TURN)
            except RuntimeError:
                # torch raises the same exception for errors and for timeouts; an earlier one is an error.
                now = time.monotonic()
                if now - tried < _TURN.total_seconds() or (
                    timeout and now - began >= timeout.total_seconds()
                ):
                    raise
                travelling.append(work)
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """A future that is done when all messages have arrived."""
        futures: list[torch.futures.Future[Any]] = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures)  # pyright: ignore[reportUnknownVariableType]
