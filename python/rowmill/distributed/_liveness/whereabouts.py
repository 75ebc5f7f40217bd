"""Detection of ranks in different calls, which would wait for each other until a timeout.

All ranks must make the same calls in the same order. If a rank leaves out a backward, or has one batch more, it waits in one
call while the other ranks wait in another: a deadlock. Messages of the two calls never mix, because calls of different kinds
use different process groups or, in gloo, different collectives.

A rank that has waited for a second publishes, in the key-value store of torch.distributed, the call that it waits in and the
number of calls of each kind that it has begun. *Two ranks, each waiting in a call that the other has not begun, are
deadlocked*: they began the two calls in different orders. There are no false alarms: a slow rank publishes no wait, and a rank
that is behind waits in a call that the other ranks have begun.

In the first second of a wait nothing is sent. A rank that waits outside these calls, or left its loop without ending, is
detected only after `timeout_s`.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from rowmill.distributed._liveness.within import within
from rowmill.errors import ExchangeFailed, RankLost, RowmillError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")

_PATIENCE_S = 1.0
"""Interval, in seconds, at which a waiting rank publishes its call."""

_PATIENCE = timedelta(seconds=_PATIENCE_S)

_STORE_S = 5.0
"""Longest wait for an answer of the key-value store, whose process may be stopped."""

_ROLL_CALL_S = 3.0
"""Time for live ranks to report that their waits have failed too; the other ranks count as lost."""

_FAREWELL_S = 5.0
"""Longest time for which rank 0 stays after a failure, so that the other ranks can read the reason from it."""

_LOOK_AGAIN_S = 0.1

_NAMED_MAX = 8
"""Largest number of ranks listed in a message."""


class Call(NamedTuple):
    """A collective call of all ranks: its kind, its number within the kind, and its name in errors.

    Two calls can match in communication if and only if they are of one kind.
    """

    kind: str
    number: int
    name: str

    def __str__(self) -> str:
        return self.name


class Whereabouts:
    """The calls that this rank has begun in one thread, and the published waits of the other ranks.

    Args:
        group: Process group of the ranks; its name identifies the thread on all ranks.
        above: The object of the parent thread, with which failures are shared.
    """

    def __init__(self, group: dist.ProcessGroup, above: Whereabouts | None = None) -> None:
        self._rank, self._count = group.rank(), group.size()
        self._thread: str = group.group_name
        self._begun: Counter[str] = Counter()
        self._first: Whereabouts = self if above is None else above._first
        self._groups: list[dist.ProcessGroup] = []
        self._failure: RowmillError | None = None
        self._step: int | None = None
        if above is None:
            shared = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
            self._store = c10d.PrefixStore(f"rowmill {self._thread}", shared)
            self._store.set(f"failed {self._rank}", "")
            self._store.set(f"read {self._rank}", "")
            if self._rank == 0:
                self._store.set("verdict", "")
        else:
            self._store = self._first._store
        self._tell("")
        self.include(group)

    def include(self, group: dist.ProcessGroup) -> None:
        """Register another process group that calls use."""
        self._first._groups.append(group)

    def begin(self, what: str, of: str = "", name: str | None = None) -> Call:
        """Begin the next call of a kind.

        Args:
            what: The operation.
            of: Suffix that, with `what`, makes the kind.
            name: Name of the call in errors; None: kind and number.
        """
        kind = what + of
        self._begun[kind] += 1
        number = self._begun[kind]
        return Call(kind, number, name or f"{what} {number}{of}")

    def step(self, number: int) -> None:
        """Set the number of the training step, which error messages then include."""
        self._first._step = number

    def fail(self, failure: RowmillError) -> None:
        """Make all waits that last longer than a second raise `failure`, because they cannot succeed."""
        self._first._failure = failure

    def wait(self, work: dist.Work, call: Call, timeout_s: float) -> None:
        """Wait for a collective that is part of a call.

        Raises:
            ExchangeFailed: On every rank, if ranks are in different calls.
            RankLost: Another rank ended, or did not join within `timeout_s`.
        """
        began, told = time.monotonic(), False
        while True:
            tried = time.monotonic()
            try:
                work.wait(_PATIENCE)
                break
            except RuntimeError as error:
                # torch raises the same exception for errors and for timeouts; an earlier one is an error.
                now = time.monotonic()
                if now - tried < _PATIENCE_S or now - began >= timeout_s:
                    self._raise(self._lost(call), error)
            told = True
            if failure := self._first._failure:
                self._raise(failure)
            if failure := _asked(lambda: self._apart(call)):
                self._let_read(range(self._count))
                self._raise(failure)
        if told:
            _asked(lambda: self._tell(""))

    def _apart(self, call: Call) -> RowmillError | None:
        """Publish this rank's wait; returns the error to raise if the rank is deadlocked with another one."""
        here = {"at": self._at(call), "in": [call.kind, call.number], "begun": self._begun}
        self._tell(json.dumps(here))
        if not any(self._crosses(call, other) for other in self._waiting()):
            return self._verdict()
        # Give the other ranks time to publish their waits, so that the message lists all.
        time.sleep(_PATIENCE_S)
        at = [rank["at"] for rank in self._waiting()]
        return self._verdict(
            ExchangeFailed(
                f"ranks are in different calls: {_listed(at)}; make the same calls in the same order on every rank, for "
                "equally many batches, and in training a backward for each forward"
            )
        )

    def _crosses(self, call: Call, other: dict[str, Any]) -> bool:
        kind, number = other["in"]
        return self._begun[kind] < number and other["begun"].get(call.kind, 0) < call.number

    def _lost(self, call: Call) -> RowmillError:
        """The error for a failed wait. Ranks that do not report a failed wait of their own count as lost."""
        until = time.monotonic() + _ROLL_CALL_S
        _asked(lambda: self._store.set(f"failed {self._rank}", "yes"))
        silent = _asked(self._silent)
        while silent and self._first._failure is None and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
            silent = _asked(self._silent)
        if self._first._failure is not None:
            return self._first._failure
        if silent is None:
            who = "the other ranks, and the key-value store is gone too, so rank 0 or the launcher ended"
        elif not silent:
            who = "the other ranks, and the waits of all ranks failed"
        else:
            who = f"rank{'s' * (len(silent) > 1)} {_listed([str(rank) for rank in silent])}"
            who += ", which ended, hangs, or makes no more calls"
        lost = RankLost(f"{self._at(call)} got no answer from {who}; start all ranks again")
        verdict = _asked(lambda: self._verdict(lost)) or lost
        if silent is not None:
            self._let_read([rank for rank in range(self._count) if rank not in silent])
        return verdict

    def _let_read(self, ranks: Iterable[int]) -> None:
        """Report that this rank has read why all fail. Rank 0 waits for the other ranks: its process may hold the store."""
        _asked(lambda: self._store.set(f"read {self._rank}", "yes"))
        until = time.monotonic() + _FAREWELL_S
        keys = [f"read {rank}" for rank in ranks]
        while self._rank == 0 and time.monotonic() < until:
            said = _asked(lambda: self._store.multi_get(keys))
            if said is None or all(said):
                return
            time.sleep(_LOOK_AGAIN_S)

    def _raise(self, failure: RowmillError, cause: BaseException | None = None) -> NoReturn:
        # Leak the groups on purpose: freeing a group with an unfinished collective would block the end of the process.
        for group in self._first._groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        raise failure from cause

    # The key-value store.

    def _at(self, call: Call) -> str:
        step = "" if self._first._step is None else f" of step {self._first._step}"
        return f"rank {self._rank} in {call}{step}"

    def _tell(self, where: str) -> None:
        self._store.set(f"{self._thread} {self._rank}", where)

    def _waiting(self) -> list[dict[str, Any]]:
        """The published waits of all ranks."""
        told = self._store.multi_get([f"{self._thread} {rank}" for rank in range(self._count)])
        return [json.loads(where) for where in told if where]

    def _silent(self) -> list[int]:
        """Ranks that have not reported a failed wait."""
        failed = self._store.multi_get([f"failed {rank}" for rank in range(self._count)])
        return [rank for rank, said in enumerate(failed) if not said]

    def _verdict(self, mine: RowmillError | None = None) -> RowmillError | None:
        """The error that the first rank published for all ranks, after proposing `mine`; None if there is none."""
        if mine is None:
            said = self._store.get("verdict")
        else:
            said = self._store.compare_set("verdict", "", f"{type(mine).__name__} {mine}")
        kind, _, message = said.decode().partition(" ")
        if not message:
            return None
        return RankLost(message) if kind == RankLost.__name__ else ExchangeFailed(message)


def _asked(call: Callable[[], _T]) -> _T | None:
    """The result of a request to the key-value store; None if the store is gone or does not answer."""
    try:
        return within(_STORE_S, call)
    except (RuntimeError, TimeoutError):
        return None


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
