"""Stopping a run at an instant, and telling from outside what it was doing.

SIGSTOP holds every thread where it is. What the run was in the middle of then shows in the files of its store and in
the system call that each thread was in, so nothing in the product takes part. Only what is certain counts:

| phase | what shows it |
|---|---|
| starting | the store is not locked by this process |
| opening | it is, but the thread that cleans is not there yet |
| checkpoint: attachment | an attachment of the coming checkpoint is there |
| checkpoint: rows | and the index log of the one after it: the cut was made |
| checkpoint: manifest | and a new manifest that has not replaced the old one |
| checkpoint: removal | the manifest is the new one, and attachments of an earlier one are there |
| flush | a thread is in a write to a log |
| compaction | the thread that cleans is in a read; it reads nothing but segments to clean |
| test | none of these, and the last checkpoint but one is durable |
| report | none of these, and the last checkpoint is durable |
| training | none of these |

A file counts only if it changed since the process began: those that an earlier kill left behind look alike. For the
same reason what is to be removed counts only once this process has replaced the manifest.
"""

from __future__ import annotations

import os
import platform
import signal
import time
from pathlib import Path

import pytest

from python.tests.train.runs import DEADLINE_S, epoch

INSIDE = ("checkpoint", "flush", "compaction")
"""Phases in which files of the store are being written, read back or removed."""

# Linux keeps 15 characters of the name of a thread.
_CLEANER = "rowmill-compaction"[:15]
# Numbers of pread64 and pwrite64; that of io_uring_enter is the same everywhere.
_PREAD, _PWRITE = {"x86_64": ("17", "18"), "aarch64": ("67", "68")}.get(
    platform.machine(), (None, None)
)
_IO_URING_ENTER = "426"
# How long a thread in the kernel may take to come to a stop.
_PATIENCE_S = 0.5


def need_system_calls() -> None:
    """Skip on systems that do not show the current system call of a process."""
    if _PREAD is None:
        pytest.skip(f"the numbers of system calls on {platform.machine()} are not known here")
    try:
        Path(f"/proc/self/task/{os.getpid()}/syscall").read_text()
    except OSError as error:
        pytest.skip(f"the system call a process is in cannot be read: {error}")


class Halt:
    """A process of a run, to be looked at and stopped.

    Args:
        store: Folder of its rows, as it is before the process begins.
        checkpoints: How many a whole run makes; the last two are those of the end of training and of the test.
    """

    def __init__(self, store: Path, checkpoints: int) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._files_before = _files(store)
        self._epoch_before = epoch(store)
        self._process = Path()

    def follow(self, pid: int | None) -> None:
        """The process has begun."""
        assert pid is not None
        self._process = Path(f"/proc/{pid}")

    def stop(self) -> bool:
        """Stop every thread where it is; False if the process is gone."""
        begun = time.monotonic()
        try:
            os.kill(int(self._process.name), signal.SIGSTOP)
        except ProcessLookupError:
            return False
        while (states := {_state(task) for task in self._tasks()}) - {"T", "Z", ""}:
            waited = time.monotonic() - begun
            # A thread that is ending waits in the kernel for workers of its ring, and they are stopped too.
            if waited > _PATIENCE_S and not states - {"T", "Z", "", "D"}:
                break
            assert waited < DEADLINE_S, f"the process cannot be stopped: {states}"
        return "T" in states

    def go_on(self) -> None:
        """Let the stopped process run."""
        os.kill(int(self._process.name), signal.SIGCONT)

    def phases(self) -> list[str]:
        """What the process is doing: exact if it is stopped, else a hint."""
        calls = [(_read(task / "comm"), _read(task / "syscall").split()) for task in self._tasks()]
        if not any(name == _CLEANER for name, _ in calls):
            locked = _read(self._store / "LOCK") == self._process.name
            return ["opening" if locked else "starting"]
        now, present = epoch(self._store), _files(self._store)
        found = self._checkpoint(now, present)
        if any(call[0] == _PWRITE and self._is_log(call[1]) for _, call in calls if call):
            found.append("flush")
        if any(
            call[0] in (_PREAD, _IO_URING_ENTER)
            for name, call in calls
            if name == _CLEANER and call
        ):
            found.append("compaction")
        if not found:
            rest = {self._checkpoints - 1: "test", self._checkpoints: "report"}
            found.append(rest.get(now, "training"))
        return found

    def _checkpoint(self, now: int, present: _Files) -> list[str]:
        fresh = {name for name, file in present.items() if self._files_before.get(name) != file}
        if any(name.startswith(f"attachment-{now + 1}-") for name in fresh):
            if "MANIFEST.new" in fresh:
                return ["checkpoint: manifest"]
            cut = f"index-{now + 2}.delta" in fresh
            return ["checkpoint: rows" if cut else "checkpoint: attachment"]
        attached = {int(name.split("-")[1]) for name in present if name.startswith("attachment-")}
        if now > self._epoch_before and any(number < now for number in attached):
            return ["checkpoint: removal"]
        return []

    def _is_log(self, descriptor: str) -> bool:
        try:
            file = (self._process / "fd" / str(int(descriptor, 16))).readlink()
        except OSError:
            return False
        return file.parent.samefile(self._store) and file.suffix == ".log"

    def _tasks(self) -> list[Path]:
        try:
            return list((self._process / "task").iterdir())
        except (FileNotFoundError, ProcessLookupError):  # Gone before, or while they were listed.
            return []


_Files = dict[str, tuple[int, int]]


def _files(store: Path) -> _Files:
    """Time of the last change and size of every file of a store."""
    found: _Files = {}
    for path in store.glob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path.name] = (status.st_mtime_ns, status.st_size)
    return found


def _state(task: Path) -> str:
    """One letter, as in `ps`; nothing if the thread is gone."""
    return _read(task / "stat").rpartition(")")[2][1:2]


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
