"""What torchrun does to a rank: it says which one that is and where the others are, and ends it when one of them is gone."""

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
"""How much later than it was told torch may notice that nobody is there: it tries again, and waits in between."""
_COUNT_MAX = 1 << 20
_PORT_MAX = (1 << 16) - 1


@dataclass(frozen=True)
class Launched:
    """Which rank this process is, as its environment has it.

    Attributes:
        rank: Of all.
        count: How many those are.
        local_rank: Of those on this machine.
        local_count: How many those are.
    """

    rank: int
    count: int
    local_rank: int
    local_count: int

    @classmethod
    def here(cls) -> Launched | None:
        """None if nobody started this process as a rank.

        Raises:
            InvalidInput: The environment says what cannot be.
        """
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            return None
        count = _number("WORLD_SIZE", 1, _COUNT_MAX)
        rank = _number("RANK", 0, count - 1)
        # Else all of them are taken to be on this machine.
        local_count = _number("LOCAL_WORLD_SIZE", 1, count, default=count)
        return cls(rank, count, _number("LOCAL_RANK", 0, count - 1, default=rank), local_count)


def meet(
    here: Launched,
    backend: str,
    *,
    meeting_s: float,
    wait_s: float,
    able: Callable[[], object] | None = None,
) -> None:
    """Begin torch.distributed, if all ranks come and all can.

    Args:
        here: This rank.
        backend: Of torch.distributed.
        meeting_s: Longest wait for the others to come.
        wait_s: Longest wait for them afterwards.
        able: Raises where this rank lacks what it needs; all hear of it.

    Raises:
        ExchangeFailed: Not all came; or, on every rank, one cannot begin.
        InvalidInput: The environment does not say where to meet; or, on every rank, input of one is wrong.
    """
    if not os.environ.get("MASTER_ADDR"):
        raise InvalidInput("MASTER_ADDR is not set: start the ranks with torchrun, which sets it")
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT", 0, _PORT_MAX)
    try:
        # Torch waits without an end for an answer of whoever took the connection.
        store = within(meeting_s + _LATE_S, lambda: _store(here, host, port, meeting_s))
        # Before any waits for another: what is wrong with one is heard by all.
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
            f"rank {here.rank} could not meet the others at {host}:{port}: somebody takes connections there and does not "
            f"answer, as another program would; start all {here.count} ranks with a MASTER_PORT that is free"
        ) from None
    except (RuntimeError, ValueError) as error:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise ExchangeFailed(
            f"rank {here.rank} could not meet the others at {host}:{port}: {what}; start all {here.count} ranks, within "
            f"{meeting_s:g} s, and with a MASTER_PORT that is free"
        ) from error


def _store(here: Launched, host: str, port: int, meeting_s: float) -> c10d.Store:
    """What ranks share: that of torchrun itself, or of rank 0. Nobody waits for the others here."""
    of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = c10d.TCPStore(
        host,
        port,
        here.count,
        is_master=here.rank == 0 and not of_torchrun,
        timeout=timedelta(seconds=meeting_s),
        wait_for_workers=False,
        multi_tenant=True,
    )
    # Where ranks are started again, some versions of torchrun keep what the last ones said.
    return c10d.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _all_can(
    store: c10d.Store,
    here: Launched,
    backend: str,
    meeting_s: float,
    able: Callable[[], object] | None,
) -> None:
    """Wait until all ranks have come, and raise on all if one cannot begin."""
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
            f"of {here.count} ranks these did not come within {meeting_s:g} s: {', '.join(map(str, absent))}; start all again"
        ) from None
    said = [store.get(key).decode().split(" ", 2) for key in keys]
    _leave(store, here)
    failures = [(bool(int(invalid)), message) if message else None for _, invalid, message in said]
    raise_first(failures, failure)
    for rank, (other, _, _) in enumerate(said):
        if other != said[0][0]:
            raise InvalidInput(
                f"ranks disagree on the backend: rank 0 has {said[0][0]!r}, rank {rank} has {other!r}"
            )


def _leave(store: c10d.Store, here: Launched) -> None:
    """Rank 0 may hold what the others read from, so it is the last to go on."""
    if here.rank > 0:
        store.set(f"read/{here.rank}", "")
        return
    store.wait([f"read/{rank}" for rank in range(1, here.count)], timedelta(seconds=_LEAVE_S))


@contextmanager
def ends_late(seconds: float, said: str | None = None) -> Generator[None]:
    """SIGTERM ends this process, but not at once.

    When a rank is gone torchrun ends the others, which have yet to say which one it was.

    Args:
        seconds: How long they may take.
        said: Printed at the end, on standard error.
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
        # Signals are the main thread's, and this is a program of somebody else.
        yield
        return
    before = signal.signal(signal.SIGTERM, later)
    yield
    # Not after an error: that is what there is to say.
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
