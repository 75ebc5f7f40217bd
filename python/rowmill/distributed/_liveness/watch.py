"""Which ranks still live, told over a line of its own, so that nobody waits for one that is gone.

A collective that a dead rank should have joined ends with an error about sockets, or after minutes. Here every rank has a
connection to rank 0 and says over it which step it is in. The system closes the connections of a process that ends,
however it ends, so rank 0 knows at once and tells the others who was lost in which step. A rank whose machine is gone
is not heard of any more.

Lines of text, each ended by a newline: `at <step>` (also twice a second), `failed <what>`, `over`, and from rank 0 `lost
<rank> <step> <what>`.
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
# A rank that says it failed may only have met one that is gone: that one's connection closes at about the same time.
_DOUBT_TICKS = 2
_VERDICT_S = 5.0
_MEETING_S = 60.0
_LINE_BYTES_MAX = 4096
_EXIT = 70
"""What a process ends with that did not come out of a collective by itself."""


@dataclass
class _Peer:
    """A rank at the other end of a connection."""

    rank: int
    line: socket.socket
    step: str = "-"
    quiet: int = 0
    """Ticks without a word."""
    over: bool = False
    unread: bytes = b""
    failed: str | None = None
    doubt: int = field(default=_DOUBT_TICKS)


class Watch:
    """Ends the wait for a rank that is gone, with its number and its step.

    Inside the `with` block, a collective that fails because another rank is gone raises `RankLost`, and waits of
    `Ranks` and of what is made with them end by it. A rank that is still inside another collective so many seconds
    after one was lost ends its process, with the same message on standard error: nothing else gets it out. Making a
    watch is a collective.

    Args:
        ranks: Who is watched.
        silence_s: After so many seconds without a word a rank counts as lost: its machine is gone, or stands still.
        grace_s: Seconds to come out of a collective.
        advice: What to do then, the end of the message.

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
        advice: str = "start all ranks again, and they go on from their last checkpoint",
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
        # Not before that: the thread closes the connection, which without a word is the end of a rank.
        self._left.set()
        self._thread.join()
        # What collectives raise when another rank is gone; everything else is this rank's own.
        foreign = isinstance(error, RuntimeError) and not isinstance(error, RowmillError)
        if foreign and self._lost is not None and self._lost_rank != self._rank:
            raise RankLost(self._lost) from error

    def step(self, number: int) -> None:
        """This rank begins a step."""
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
                    # Its end is noticed where it is listened to.
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
            # Ticks are counted and not time: where all stood still, nobody was silent.
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
        # One that failed is heard before it goes, unless there is nobody to hear it.
        return self._left.is_set() and (over or self._own_failure is None)

    def _listen(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        try:
            heard = peer.line.recv(_LINE_BYTES_MAX)
        except OSError:
            heard = b""
        if not heard:
            selector.unregister(peer.line)
            if not peer.over and peer.failed is None:
                self._lose(peer.rank, peer.step, "ended without a word")
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
            elif word == "lost":
                rank, step, what = rest.split(" ", 2)
                self._lose(int(rank), step, what)

    def _check(self, peer: _Peer) -> None:
        if peer.over:
            return
        peer.quiet += 1
        if peer.quiet > self._silence:
            self._lose(peer.rank, peer.step, f"was not heard of for {self._silence * _TICK_S:g} s")
        if peer.failed is not None:
            peer.doubt -= 1
            if peer.doubt <= 0:
                self._lose(peer.rank, peer.step, f"failed: {peer.failed}")

    def _lose(self, rank: int, step: str, what: str) -> None:
        if self._lost is not None:
            return
        where = "before its first step" if step == "-" else f"in step {step}"
        self._lost_rank = rank
        self._lost = f"rank {rank} was lost {where}: it {what}; {self._advice}"
        if rank != self._rank:
            self._whereabouts.fail(RankLost(self._lost))
        if self._rank == 0:
            self._say(f"lost {rank} {step} {what}")

    def _tell(self, lost: str) -> None:
        self._told.set()
        if not self._left.wait(self._grace_s):
            print(f"rank {self._rank} ends: {lost}", file=sys.stderr, flush=True)
            os._exit(_EXIT)


def _meet(ranks: Ranks) -> list[_Peer]:
    """Connections between rank 0 and all others."""
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
            f"ranks could not meet to watch each other ({failures[0]}): name the machine of rank 0 in MASTER_ADDR"
        )
    for peer in peers:
        peer.line.settimeout(None)
        peer.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _greeted(line: socket.socket, token: str) -> list[_Peer]:
    """Who is at the other end, if it is one of the ranks."""
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
