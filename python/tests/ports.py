"""Ports for groups of ranks."""

from __future__ import annotations

import os
import socket
from itertools import count

# Below Linux's ephemeral ports, starting at a number that depends on pytest worker and pid, so that runs rarely collide.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_NEXT = count(20_000 + 4_000 * (_WORKER % 3) + os.getpid() % 3_000)


def free_port() -> int:
    """A port that no program listens on, different at each call."""
    for port in _NEXT:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("ports have no end")
