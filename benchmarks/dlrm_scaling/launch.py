"""Starts the ranks of a run on this machine, listens to them, and ends all when one has ended too soon."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.errors import ExchangeFailed, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.dlrm_scaling.settings import Settings

RANK = Path(__file__).with_name("rank.py")
_SETTLE_S = 3.0
"""How long the others may take to end once one has failed: who failed first is not always who is heard first."""


@dataclass(eq=False)
class _Process:
    """One rank, and what it said."""

    rank: int
    popen: subprocess.Popen[str]
    words: int
    log: Path
    heard: bytes = b""
    step: int = 0
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    over: bool = field(default=False)

    def listen(self) -> None:
        """Take what was written; nothing more comes if the other end was closed."""
        came = os.read(self.words, 1 << 16)
        self.over = not came
        *lines, self.heard = (self.heard + came).split(b"\n")
        for line in lines:
            word = json.loads(line)
            self.step = word.get("step", self.step)
            self.result = word.get("done", self.result)
            self.failure = word if "failed" in word else self.failure


def run_ranks(
    settings: Settings, progress: Callable[[int], object] = lambda _: None
) -> list[dict[str, Any]]:
    """Run all ranks; what each measured.

    Args:
        settings: Of the run.
        progress: Called with the number of each step that rank 0 begins.

    Raises:
        InvalidInput: A rank says that its input is wrong.
        ExchangeFailed: One ended before it was done; the message names it and its step, and no process is left.
    """
    with tempfile.TemporaryDirectory(prefix="rowmill-bench-") as folder:
        processes: list[_Process] = []
        try:
            for rank in range(settings.ranks):
                processes.append(_start(settings, rank, Path(folder)))
            _hear_out(processes, progress)
        finally:
            for process in processes:
                if process.over:
                    # It is ending by itself; how, is what an error tells.
                    with suppress(subprocess.TimeoutExpired):
                        process.popen.wait(_SETTLE_S)
                process.popen.kill()
                process.popen.wait()
                os.close(process.words)
        failed = [process for process in processes if process.result is None]
        if failed:
            raise _reason(min(failed, key=_suspicion))
    return [process.result for process in processes if process.result is not None]


def _start(settings: Settings, rank: int, folder: Path) -> _Process:
    log = folder / f"rank{rank}.log"
    words, theirs = os.pipe()
    try:
        # What libraries print is of interest only if a rank ends without a word.
        with log.open("w") as out:
            popen = subprocess.Popen(
                [sys.executable, str(RANK), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                pass_fds=(theirs,),
                text=True,
            )
    except BaseException:
        os.close(words)
        raise
    finally:
        os.close(theirs)
    place = {
        "rank": rank,
        "local_rank": rank,
        "local_ranks": settings.ranks,
        "meeting": str(folder / "meeting"),
    }
    assert popen.stdin is not None
    # A process that is gone already will be noticed as such.
    with suppress(BrokenPipeError):
        json.dump({"settings": settings.__dict__, "place": place}, popen.stdin)
        popen.stdin.close()
    return _Process(rank, popen, words, log)


def _hear_out(processes: list[_Process], progress: Callable[[int], object]) -> None:
    """Listen until all are over, or one has failed and the others had time to say so too."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.words, selectors.EVENT_READ, process)
        deadline = None
        while selector.get_map() and (deadline is None or time.monotonic() < deadline):
            for key, _ in selector.select(0.5):
                process: _Process = key.data
                before = process.step
                process.listen()
                if process.rank == 0 and process.step != before:
                    progress(process.step)
                if process.over:
                    selector.unregister(key.fileobj)
                if (
                    deadline is None
                    and process.result is None
                    and (process.over or process.failure)
                ):
                    deadline = time.monotonic() + _SETTLE_S


def _suspicion(process: _Process) -> int:
    """The smaller, the more likely this rank is why the others failed: those who waited only lost it."""
    if process.failure is None:
        # Without a word: it died, or it still waits and was ended by us.
        return 0 if process.over else 3
    return 2 if process.failure["waiting"] else 1


def _reason(process: _Process) -> Exception:
    where = f"in step {process.step}" if process.step else "before its first step"
    if process.failure is not None:
        if process.failure["invalid"]:
            return InvalidInput(process.failure["failed"])
        what = "lost another rank" if process.failure["waiting"] else "failed"
        return ExchangeFailed(f"rank {process.rank} {what} {where}: {process.failure['failed']}")
    code = process.popen.returncode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    said = [line for line in process.log.read_text(errors="replace").splitlines() if line.strip()]
    last = f": {said[-1].strip()}" if said and code >= 0 else ""
    return ExchangeFailed(f"rank {process.rank} {how} {where}{last}")
