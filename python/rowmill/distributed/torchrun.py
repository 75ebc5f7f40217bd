"""Start under torchrun: read a rank's environment, connect all ranks, and delay the SIGTERM that follows a lost rank."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from rowmill.distributed._liveness.within import within
from rowmill.distributed.ranks import raise_first, spell
from rowmill.errors import ExchangeFailed, InvalidInput, RowmillError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_LEAVE_S = 5.0
_LATE_S = 10.0
"""Allowance beyond torch's own timeout, which torch overruns because it retries with pauses."""
_COUNT_MAX = 1 << 20
_PORT_MAX = (1 << 16) - 1
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_MEMORY_S = 60.0
"""Longest wait for torchrun's key-value store."""


@dataclass(frozen=True)
class Launched:
    """This process's rank, from its environment.

    Attributes:
        rank: Rank among all ranks.
        count: Number of ranks.
        local_rank: Rank among the ranks of this machine.
        local_count: Number of ranks of this machine.
    """

    rank: int
    count: int
    local_rank: int
    local_count: int

    @classmethod
    def here(cls) -> Launched | None:
        """Read `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE`; None if the first two are not both set.

        Raises:
            InvalidInput: A variable is invalid.
        """
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            return None
        count = _number("WORLD_SIZE", 1, _COUNT_MAX)
        rank = _number("RANK", 0, count - 1)
        # Without LOCAL_WORLD_SIZE all ranks are assumed to be on this machine.
        local_count = _number("LOCAL_WORLD_SIZE", 1, count, default=count)
        return cls(rank, count, _number("LOCAL_RANK", 0, count - 1, default=rank), local_count)


@dataclass(frozen=True)
class Restarts:
    """What torchrun says of its starts of these ranks.

    Attributes:
        count: Number of earlier starts.
        memory: Values that live as long as torchrun does, whichever start has set them; None if it keeps none.
    """

    count: int
    memory: c10d.Store | None

    @classmethod
    def here(cls) -> Restarts | None:
        """Read `TORCHELASTIC_RESTART_COUNT`; None without torchrun."""
        if "TORCHELASTIC_RESTART_COUNT" not in os.environ:
            return None
        count = _number("TORCHELASTIC_RESTART_COUNT", 0, _COUNT_MAX)
        here = Launched.here()
        if here is None or os.environ.get(_AGENT_STORE) != "True":
            return cls(count, None)
        host, port = _meeting_place()
        return cls(count, c10d.PrefixStore("starts", _server(here, host, port, _MEMORY_S)))

    def remember(self, name: str, value: str) -> None:
        """Set a value for later starts."""
        if self.memory is not None:
            self.memory.set(name, value)

    def recall(self, name: str) -> str | None:
        """The value that this or an earlier start has set; None if there is none."""
        if self.memory is None or not self.memory.check([name]):
            return None
        return self.memory.get(name).decode()


def meet(
    here: Launched,
    backend: str,
    *,
    meeting_s: float,
    wait_s: float,
    able: Callable[[], object] | None = None,
) -> None:
    """Connect all ranks, check their prerequisites, and initialise torch.distributed.

    Args:
        here: This rank.
        backend: Backend of torch.distributed.
        meeting_s: Longest wait for all ranks to connect, in seconds.
        wait_s: Timeout of the process group, in seconds.
        able: Raises if this rank lacks a prerequisite; every rank then raises.

    Raises:
        ExchangeFailed: Not all ranks connected; or, on every rank, one rank lacks a prerequisite.
        InvalidInput: `MASTER_ADDR` or `MASTER_PORT` is invalid; or, on every rank, the input of one rank is invalid.
    """
    host, port = _meeting_place()
    try:
        # If a foreign program accepts the connection, torch waits for its answer without a timeout.
        store = within(meeting_s + _LATE_S, lambda: _store(here, host, port, meeting_s))
        # Check before any collective, so that every rank learns of a failure instead of waiting.
        _all_can(store, here, backend, meeting_s, able)
        dist.init_process_group(
            backend,
            store=c10d.PrefixStore("ranks", store),
            rank=here.rank,
            world_size=here.count,
            timeout=timedelta(seconds=wait_s),
        )
    except RowmillError:
        raise
    except TimeoutError:
        raise ExchangeFailed(
            f"rank {here.rank} could not reach the other ranks at {host}:{port}: another program seems to use this port; "
            f"it accepts connections and does not answer. Start all {here.count} ranks with a MASTER_PORT that is free"
        ) from None
    except (RuntimeError, ValueError) as error:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExchangeFailed(
            f"rank {here.rank} could not reach the other ranks at {host}:{port}: {what}; start all {here.count} ranks, within "
            f"{meeting_s:g} s, and with a MASTER_PORT that is free"
        ) from error


def _meeting_place() -> tuple[str, int]:
    """Host and port of the key-value store that ranks share."""
    if not os.environ.get("MASTER_ADDR"):
        raise InvalidInput("MASTER_ADDR is not set: start the ranks with torchrun, which sets it")
    return os.environ["MASTER_ADDR"], _number("MASTER_PORT", 0, _PORT_MAX)


def _server(here: Launched, host: str, port: int, meeting_s: float) -> c10d.Store:
    """The key-value store that ranks share, of torchrun or of rank 0. This call does not wait for other ranks."""
    return c10d.TCPStore(
        host,
        port,
        here.count,
        is_master=here.rank == 0 and os.environ.get(_AGENT_STORE) != "True",
        timeout=timedelta(seconds=meeting_s),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _store(here: Launched, host: str, port: int, meeting_s: float) -> c10d.Store:
    """The part of the key-value store for this start of the ranks."""
    store = _server(here, host, port, meeting_s)
    # After a restart of the ranks, some versions of torchrun keep keys of the previous start.
    return c10d.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _all_can(
    store: c10d.Store,
    here: Launched,
    backend: str,
    meeting_s: float,
    able: Callable[[], object] | None,
) -> None:
    """Wait until all ranks have connected, and raise on every rank if one lacks a prerequisite."""
    failure = None
    try:
        if backend == "oneccl":
            from rowmill.distributed.oneccl import library

            library.load()
        if able is not None:
            able()
    except Exception as error:
        failure = error
    invalid, message = (False, "") if failure is None else spell(failure)
    store.set(f"can/{here.rank}", f"{backend} {int(invalid)} {message}")
    keys = [f"can/{rank}" for rank in range(here.count)]
    try:
        store.wait(keys, timedelta(seconds=meeting_s))
    except dist.DistStoreError:
        absent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise ExchangeFailed(
            f"of {here.count} ranks these did not connect within {meeting_s:g} s: {', '.join(map(str, absent))}; start all "
            "ranks again"
        ) from None
    said = [store.get(key).decode().split(" ", 2) for key in keys]
    _leave(store, here)
    failures = [(bool(int(invalid)), message) if message else None for _, invalid, message in said]
    raise_first(failures, failure)
    for rank, (other, _, _) in enumerate(said):
        if other != said[0][0]:
            raise InvalidInput(
                f"ranks disagree on the backend: rank 0 has {said[0][0]!r}, rank {rank} has {other!r}; it must be equal on all ranks"
            )


def _leave(store: c10d.Store, here: Launched) -> None:
    """Rank 0, whose process may serve the key-value store, waits until the other ranks have read it."""
    if here.rank > 0:
        store.set(f"read/{here.rank}", "")
        return
    store.wait([f"read/{rank}" for rank in range(1, here.count)], timedelta(seconds=_LEAVE_S))


@contextmanager
def ends_late(seconds: float, said: str | None = None) -> Generator[None]:
    """Delay the end of this process by SIGTERM.

    When a rank ends, torchrun sends SIGTERM to the other ranks. The delay lets them report which rank was lost.

    Args:
        seconds: The delay.
        said: Message printed on standard error at the end.
    """

    def end() -> None:
        if said is not None:
            print(said, file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGTERM)

    def later(*_: object) -> None:
        last = threading.Timer(seconds, end)
        last.daemon = True
        last.start()

    if threading.current_thread() is not threading.main_thread():
        # Python sets signal handlers in the main thread only.
        yield
        return
    before = signal.signal(signal.SIGTERM, later)
    yield
    # After an error the delay stays, so that the error can be reported.
    signal.signal(signal.SIGTERM, before)


def _number(name: str, least: int, most: int, *, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal() or len(text) > 9 or not least <= int(text) <= most:
        found = "not set" if text is None else repr(text[:20])
        raise InvalidInput(
            f"{name} must be a number from {least} to {most}, and is {found}: start the ranks with torchrun, which sets it"
        )
    return int(text)
