"""Detection of lost ranks over separate TCP connections, so that no rank waits for a dead one.

A collective that a dead rank should have joined ends with an error about sockets, or only after minutes. Here every rank has
a connection to rank 0, and reports its step over it. The system closes the connections of a process when it ends, so rank 0
knows at once, and sends the lost rank and its step to the other ranks. A rank whose machine is gone is detected by its
silence.

The protocol is lines of text, each ended by a newline: `at <step>` (also twice a second), `failed <what>`, `over`, and from
rank 0 `lost <rank> <step> <what>` and `silent <rank> <step> <seconds>`.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from rowmill.errors import ExchangeFailed, InvalidInput, RankLost, RowmillError

if TYPE_CHECKING:
    from types import TracebackType

    from rowmill.distributed.ranks import Ranks

_TICK_S = 0.5
# A rank may report a failure that was caused by a lost rank, whose connection closes at about the same time. Wait for it.
_DOUBT_TICKS = 2
_VERDICT_S = 5.0
_MEETING_S = 60.0
_LINE_BYTES_MAX = 4096
_EXIT = 70
"""Exit status of a process that had to be ended inside a collective."""


@dataclass
class _Peer:
    """The rank at the other end of a connection."""

    rank: int
    line: socket.socket
    step: str = "-"
    quiet: int = 0
    """Ticks since the last message."""
    over: bool = False
    unread: bytes = b""
    failed: str | None = None
    doubt: int = field(default=_DOUBT_TICKS)


class Watch:
    """Detects lost ranks and ends all waits for them, with the lost rank and its step in the error.

    Inside the `with` block, a collective that fails because of a lost rank raises `RankLost`, as do waits of `Ranks` and
    of objects that use it. Other collectives cannot be interrupted: if this rank is still inside one `grace_s` seconds
    after a rank was lost, its process prints the message on standard error and exits with status 70. The constructor is
    a collective.

    Args:
        ranks: The ranks to watch.
        silence_s: Seconds without a message after which a rank counts as lost, for machines that are gone or hang.
        grace_s: Seconds that a rank has to leave a collective.
        advice: Advice at the end of the message.

    Raises:
        InvalidInput: `silence_s` or `grace_s` is too small.
        ExchangeFailed: On every rank, if ranks could not connect.

    Examples:
        Around the training loop of every rank::

            with Watch(ranks) as watch:
                for step in range(steps):
                    watch.step(step)
                    ...
    """

    def __init__(
        self,
        ranks: Ranks,
        *,
        silence_s: float = 30.0,
        grace_s: float = 10.0,
        advice: str = "start all ranks again, and they resume from their last checkpoint",
    ) -> None:
        if silence_s < 2 * _TICK_S or grace_s < 0:
            raise InvalidInput(
                f"silence_s must be at least {2 * _TICK_S} and grace_s at least 0, got {silence_s} and {grace_s}"
            )
        self._rank = ranks.rank
        self._whereabouts = ranks.whereabouts
        self._silence = int(silence_s / _TICK_S)
        self._grace_s = grace_s
        self._advice = advice
        self._step = "-"
        self._lost: str | None = None
        self._lost_rank = -1
        self._told = threading.Event()
        self._left = threading.Event()
        self._sending = threading.Lock()
        self._own_failure: str | None = None
        self._peers = _meet(ranks)
        self._thread = threading.Thread(target=self._run, name="rowmill-watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._say("over")
        else:
            self._fail(error)
        # Set it only now: the thread then closes the connection, which without `over` would mean a lost rank.
        self._left.set()
        self._thread.join()
        # Collectives raise RuntimeError when another rank is lost; other errors are this rank's own.
        foreign = isinstance(error, RuntimeError) and not isinstance(error, RowmillError)
        if foreign and self._lost is not None and self._lost_rank != self._rank:
            raise RankLost(self._lost) from error

    def step(self, number: int) -> None:
        """Report the beginning of a step."""
        self._step = str(number)
        self._whereabouts.step(number)
        self._say(f"at {number}")

    def _fail(self, error: BaseException) -> None:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        what = " ".join(said.split())[: _LINE_BYTES_MAX // 8]
        self._own_failure = what
        self._say(f"failed {what}")
        self._told.wait(_VERDICT_S)

    def _say(self, line: str) -> None:
        with self._sending:
            for peer in self._peers:
                try:
                    peer.line.sendall(line.encode() + b"\n")
                except OSError:
                    # `_listen` detects the closed connection.
                    continue

    # The thread.

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        for peer in self._peers:
            selector.register(peer.line, selectors.EVENT_READ, peer)
        tick = time.monotonic() + _TICK_S
        own_doubt = _DOUBT_TICKS
        while self._lost is None and not self._done():
            for key, _ in selector.select(max(tick - time.monotonic(), 0)):
                self._listen(selector, key.data)
            if time.monotonic() < tick:
                continue
            # Count ticks instead of time, so that a pause of this process does not make other ranks look silent.
            tick = time.monotonic() + _TICK_S
            self._say(f"at {self._step}")
            for peer in self._peers:
                self._check(peer)
            if self._own_failure is not None and self._rank == 0:
                own_doubt -= 1
                if own_doubt <= 0:
                    self._lose(0, self._step, f"failed: {self._own_failure}")
        selector.close()
        if self._lost is not None:
            self._tell(self._lost)
        for peer in self._peers:
            peer.line.close()

    def _done(self) -> bool:
        over = all(peer.over for peer in self._peers)
        if self._rank == 0:
            return over and self._left.is_set()
        # A rank that failed waits for rank 0's verdict, unless rank 0 is over.
        return self._left.is_set() and (over or self._own_failure is None)

    def _listen(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        try:
            heard = peer.line.recv(_LINE_BYTES_MAX)
        except OSError:
            heard = b""
        if not heard:
            selector.unregister(peer.line)
            if not peer.over and peer.failed is None:
                self._lose(peer.rank, peer.step, "ended without a message")
            return
        peer.quiet = 0
        *lines, peer.unread = (peer.unread + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "at":
                peer.step = rest
            elif word == "over":
                peer.over = True
            elif word == "failed":
                peer.failed = rest
            elif word in ("lost", "silent"):
                rank, step, what = rest.split(" ", 2)
                self._lose(int(rank), step, what, silent=word == "silent")

    def _check(self, peer: _Peer) -> None:
        if peer.over:
            return
        peer.quiet += 1
        if peer.quiet > self._silence:
            self._lose(peer.rank, peer.step, f"{self._silence * _TICK_S:g}", silent=True)
        if peer.failed is not None:
            peer.doubt -= 1
            if peer.doubt <= 0:
                self._lose(peer.rank, peer.step, f"failed: {peer.failed}")

    def _lose(self, rank: int, step: str, what: str, *, silent: bool = False) -> None:
        if self._lost is not None:
            return
        where = "before its first step" if step == "-" else f"in step {step}"
        self._lost_rank = rank
        if silent:
            # Both ends of a broken link say the same; neither can know whether the other one lives.
            other = rank or self._rank
            self._lost = (
                f"no message passed between ranks 0 and {other} for {what} s: the link between them is down, or one of "
                f"them hangs (rank {rank} was {where}); {self._advice}"
            )
        else:
            self._lost = f"rank {rank} was lost {where}: it {what}; {self._advice}"
        if rank != self._rank:
            self._whereabouts.fail(RankLost(self._lost))
        if self._rank == 0:
            self._say(f"{'silent' if silent else 'lost'} {rank} {step} {what}")

    def _tell(self, lost: str) -> None:
        self._told.set()
        if not self._left.wait(self._grace_s):
            print(f"rank {self._rank} ends: {lost}", file=sys.stderr, flush=True)
            os._exit(_EXIT)


def _meet(ranks: Ranks) -> list[_Peer]:
    """Connect rank 0 with all other ranks."""
    token = uuid4().hex
    listening = socket.create_server(("", 0), backlog=ranks.count) if ranks.rank == 0 else None
    port = 0 if listening is None else listening.getsockname()[1]
    said = ranks.gather((socket.gethostname(), port, token))
    (first, port, token), one_machine = said[0], len({name for name, _, _ in said}) == 1
    peers: list[_Peer] = []
    failure: str | None = None
    try:
        if listening is not None:
            with listening:
                listening.settimeout(_MEETING_S)
                while len(peers) < ranks.count - 1:
                    peers += _greeted(listening.accept()[0], token)
        else:
            host = os.environ.get("MASTER_ADDR") or ("127.0.0.1" if one_machine else first)
            line = socket.create_connection((host, port), timeout=_MEETING_S)
            line.sendall(f"{token} {ranks.rank:8}\n".encode())
            peers.append(_Peer(0, line))
    except OSError as error:
        failure = f"rank {ranks.rank}: {error}"
    failures = [failure for failure in ranks.gather(failure) if failure is not None]
    if failures:
        for peer in peers:
            peer.line.close()
        raise ExchangeFailed(
            f"ranks could not connect to detect lost ranks ({failures[0]}): set MASTER_ADDR to the machine of rank 0"
        )
    for peer in peers:
        peer.line.settimeout(None)
        peer.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _greeted(line: socket.socket, token: str) -> list[_Peer]:
    """Read the greeting of a connection; returns the rank, or an empty list for a foreign connection."""
    line.settimeout(_MEETING_S)
    greeting = b""
    while len(greeting) < len(token) + 10:
        heard = line.recv(len(token) + 10 - len(greeting))
        if not heard:
            break
        greeting += heard
    said, _, rank = greeting.decode("ascii", "replace").partition(" ")
    if said != token:
        line.close()
        return []
    return [_Peer(int(rank), line)]
