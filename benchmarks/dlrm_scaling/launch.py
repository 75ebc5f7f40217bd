"""Start the ranks of a run on this machine, read their messages, and end all if one ends too early."""

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
"""After a rank has failed, how long to wait for the other ranks to report: the first report is not always the cause."""


@dataclass(eq=False)
class RankProcess:
    """The process of one rank, and its messages so far."""

    rank: int
    popen: subprocess.Popen[str]
    words: int
    log: Path
    heard: bytes = b""
    step: int = 0
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    over: bool = field(default=False)

    def listen(self) -> list[int]:
        """Read available messages; at end of file the process counts as ended. Returns the steps begun since."""
        came = os.read(self.words, 1 << 16)
        self.over = not came
        *lines, self.heard = (self.heard + came).split(b"\n")
        begun: list[int] = []
        for line in lines:
            word = json.loads(line)
            self.step = word.get("step", self.step)
            self.result = word.get("done", self.result)
            if "failed" in word:
                self.failure = word
            elif "step" in word:
                begun.append(self.step)
        return begun


def run_ranks(
    settings: Settings, progress: Callable[[int], object] = lambda _: None
) -> list[dict[str, Any]]:
    """Run all ranks; returns the result of each.

    Args:
        settings: Settings of the run.
        progress: Called with the number of each step when rank 0 begins it.

    Raises:
        InvalidInput: A rank reports invalid input.
        ExchangeFailed: A rank ended early. The message names rank and step. All processes have ended.
    """
    with tempfile.TemporaryDirectory(prefix="rowmill-bench-") as folder:
        processes: list[RankProcess] = []
        try:
            for rank in range(settings.ranks):
                processes.append(_start(settings, rank, Path(folder)))
            hear_out(processes, progress)
        finally:
            for process in processes:
                if process.over:
                    # It is about to end by itself; its exit code belongs into the error.
                    with suppress(subprocess.TimeoutExpired):
                        process.popen.wait(_SETTLE_S)
                process.popen.kill()
                process.popen.wait()
                os.close(process.words)
        failed = [process for process in processes if process.result is None]
        if failed:
            raise _reason(min(failed, key=_suspicion))
    return [process.result for process in processes if process.result is not None]


def _start(settings: Settings, rank: int, folder: Path) -> RankProcess:
    log = folder / f"rank{rank}.log"
    words, theirs = os.pipe()
    try:
        # The output of libraries is shown only if a rank ends without reporting an error.
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
    # A process that has already ended is detected later.
    with suppress(BrokenPipeError):
        json.dump({"settings": settings.__dict__, "place": place}, popen.stdin)
        popen.stdin.close()
    return RankProcess(rank, popen, words, log)


def hear_out(processes: list[RankProcess], progress: Callable[[int], object]) -> None:
    """Read messages until all ranks have ended, or until one has failed and the rest had time to report too."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.words, selectors.EVENT_READ, process)
        deadline = None
        while selector.get_map() and (deadline is None or time.monotonic() < deadline):
            for key, _ in selector.select(0.5):
                process: RankProcess = key.data
                begun = process.listen()
                if process.rank == 0:
                    # One read may bring the messages of several steps.
                    for step in begun:
                        progress(step)
                if process.over:
                    selector.unregister(key.fileobj)
                if (
                    deadline is None
                    and process.result is None
                    and (process.over or process.failure)
                ):
                    deadline = time.monotonic() + _SETTLE_S


def _suspicion(process: RankProcess) -> int:
    """Rank by how likely a process is the cause of a failure; lowest first. Ranks that waited lost another rank."""
    if process.failure is None:
        # No report: it died, or it was still waiting when this program ended it.
        return 0 if process.over else 3
    return 2 if process.failure["waiting"] else 1


def _reason(process: RankProcess) -> Exception:
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
