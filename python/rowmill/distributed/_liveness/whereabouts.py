"""Which call every rank is in, so that ranks which are in different ones do not wait for each other.

All ranks make the same calls in the same order. One that leaves a backward out, or brings a batch more, waits for the others
in one call while they wait for it in another. Calls of different kinds never meet on the wire, for they have groups of their
own or, in gloo, are other collectives; so nothing is mixed up, and nobody gets on.

Who has waited for a second tells the others, through the store by which torch.distributed met, which call it waits in and how
many of each kind it has begun. *Two ranks, each in a call that the other has not begun, wait for ever*: they began the two in
another order. A rank that is slow waits in no call, and one that is behind in a call that the others have begun, so nobody is
accused wrongly.

In the first second nothing is sent and nobody is asked. What is not noticed is a rank that waits for something else, or has
ended its loop and lives on; it is missed after `timeout_s`.
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
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

_PATIENCE_S = 1.0
"""How long a rank waits before it tells the others where it is, and then before it does so again."""

_PATIENCE = timedelta(seconds=_PATIENCE_S)

_STORE_S = 5.0
"""For an answer of the store, whose process may stand still."""

_ROLL_CALL_S = 3.0
"""For ranks that live to say that a wait of theirs has failed, too."""

_LOOK_AGAIN_S = 0.1

_NAMED_MAX = 8
"""Ranks that a message names."""


class Call(NamedTuple):
    """Something that all ranks do together: its kind, the how manieth of that kind, and what it is called in errors.

    What meets on the wire is of one kind, and nothing else is.
    """

    kind: str
    number: int
    name: str

    def __str__(self) -> str:
        return self.name


class Whereabouts:
    """Where this rank is among the calls of one thread, and where the others say that they are.

    Args:
        group: Of the ranks; the thread is known by its name.
        above: Those of the thread that this one works for: what is said of the waits of one holds for both.
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
            if self._rank == 0:
                self._store.set("verdict", "")
        else:
            self._store = self._first._store
        self._tell("")
        self.include(group)

    def include(self, group: dist.ProcessGroup) -> None:
        """Calls go over this group as well."""
        self._first._groups.append(group)

    def begin(self, what: str, of: str = "", name: str | None = None) -> Call:
        """This rank begins the next call of a kind.

        Args:
            what: The kind.
            of: What else it is told apart by.
            name: What the call is called; None: by its number.
        """
        kind = what + of
        self._begun[kind] += 1
        number = self._begun[kind]
        return Call(kind, number, name or f"{what} {number}{of}")

    def step(self, number: int) -> None:
        """This rank begins a step of the caller's, which messages then name."""
        self._first._step = number

    def fail(self, failure: RowmillError) -> None:
        """Somebody knows that waits will not end: those that last raise this."""
        self._first._failure = failure

    def wait(self, work: dist.Work, call: Call, timeout_s: float) -> None:
        """Wait for a part of a call.

        Raises:
            ExchangeFailed: On every rank: they are in different calls.
            RankLost: Another rank ended, or did not come within `timeout_s`.
        """
        began, told = time.monotonic(), False
        while True:
            tried = time.monotonic()
            try:
                work.wait(_PATIENCE)
                break
            except RuntimeError as error:
                # What went wrong and the end of patience are one exception, but that comes no sooner.
                now = time.monotonic()
                if now - tried < _PATIENCE_S or now - began >= timeout_s:
                    self._raise(self._lost(call), error)
            told = True
            if failure := self._first._failure or _asked(lambda: self._apart(call)):
                self._raise(failure)
        if told:
            _asked(lambda: self._tell(""))

    def _apart(self, call: Call) -> RowmillError | None:
        """Tell where this rank is; what to raise if another one is where this one never comes, and waits for it."""
        here = {"at": self._at(call), "in": [call.kind, call.number], "begun": self._begun}
        self._tell(json.dumps(here))
        if not any(self._crosses(call, other) for other in self._waiting()):
            return self._verdict()
        # By then all of them have waited as long.
        time.sleep(_PATIENCE_S)
        at = [rank["at"] for rank in self._waiting()]
        return self._verdict(
            ExchangeFailed(
                f"ranks are in different calls: {_listed(at)}; make the same calls in the same order on every rank, for as "
                "many batches, and in training a backward for each forward"
            )
        )

    def _crosses(self, call: Call, other: dict[str, Any]) -> bool:
        kind, number = other["in"]
        return self._begun[kind] < number and other["begun"].get(call.kind, 0) < call.number

    def _lost(self, call: Call) -> RowmillError:
        """What to raise for a wait that failed: it was for the ranks of which none fails."""
        until = time.monotonic() + _ROLL_CALL_S
        _asked(lambda: self._store.set(f"failed {self._rank}", "yes"))
        silent = _asked(self._silent)
        while silent and self._first._failure is None and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
            silent = _asked(self._silent)
        if self._first._failure is not None:
            return self._first._failure
        if silent is None:
            who = "others, and what they met by is gone, too: rank 0 or what started them"
        elif not silent:
            who = "others, and so did all of them"
        else:
            who = f"rank{'s' * (len(silent) > 1)} {_listed([str(rank) for rank in silent])}"
            who += ": ended, stands still, or makes no more calls"
        lost = RankLost(f"{self._at(call)} waited in vain for {who}; start all ranks again")
        return _asked(lambda: self._verdict(lost)) or lost

    def _raise(self, failure: RowmillError, cause: BaseException | None = None) -> NoReturn:
        # A group whose collective never ends would keep its process from ending, if it were ever freed.
        for group in self._first._groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
        raise failure from cause

    # What ranks tell each other.

    def _at(self, call: Call) -> str:
        step = "" if self._first._step is None else f" of step {self._first._step}"
        return f"rank {self._rank} in {call}{step}"

    def _tell(self, where: str) -> None:
        self._store.set(f"{self._thread} {self._rank}", where)

    def _waiting(self) -> list[dict[str, Any]]:
        """Where those ranks are that have waited for long."""
        told = self._store.multi_get([f"{self._thread} {rank}" for rank in range(self._count)])
        return [json.loads(where) for where in told if where]

    def _silent(self) -> list[int]:
        """Ranks of which no wait has failed."""
        failed = self._store.multi_get([f"failed {rank}" for rank in range(self._count)])
        return [rank for rank, said in enumerate(failed) if not said]

    def _verdict(self, mine: RowmillError | None = None) -> RowmillError | None:
        """What the first rank that knew said for all, which may be this one."""
        if mine is None:
            said = self._store.get("verdict")
        else:
            said = self._store.compare_set("verdict", "", f"{type(mine).__name__} {mine}")
        kind, _, message = said.decode().partition(" ")
        if not message:
            return None
        return RankLost(message) if kind == RankLost.__name__ else ExchangeFailed(message)


def _asked(call: Callable[[], _T]) -> _T | None:
    """What the store says; None if it is gone, or stands still."""
    try:
        return within(_STORE_S, call)
    except (RuntimeError, TimeoutError):
        return None


def _listed(words: Sequence[str]) -> str:
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
