"""Stop a run at some point, and tell from outside what it was doing.

SIGSTOP stops every thread. What the run was doing then follows from the files of its store and from the system call of each
thread, without any support in the product. Only certain evidence counts:

 phase | evidence |
|---|---|
 starting | the store is not locked by this process |
 opening | the store is locked, but the compaction thread does not run yet |
 checkpoint: attachment | an attachment of the coming checkpoint exists |
 checkpoint: rows | in addition, the index log of the checkpoint after it exists: the log was cut |
 checkpoint: manifest | in addition, a new manifest exists that has not replaced the old one |
 checkpoint: removal | the manifest is the new one, and attachments of an earlier checkpoint exist |
 flush | a thread is writing to a log |
 compaction | the compaction thread is reading; it only reads segments to clean |
 test | none of these, and the second-to-last checkpoint is durable |
 report | none of these, and the last checkpoint is durable |
 training | none of these |

A file counts only if it changed after the process began, because files left by an earlier kill look the same. For the same
reason, files that will be removed count only after this process has replaced the manifest.
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

# Linux keeps 15 characters of a thread's name.
_CLEANER = "rowmill-compaction"[:15]
# System call numbers of pread64 and pwrite64; io_uring_enter has the same number everywhere.
_PREAD, _PWRITE = {"x86_64": ("17", "18"), "aarch64": ("67", "68")}.get(
    platform.machine(), (None, None)
)
_IO_URING_ENTER = "426"
# How long a thread in the kernel may take to stop.
_PATIENCE_S = 0.5


def need_system_calls() -> None:
    """Skip the test on systems that do not show the current system call of a process."""
    if _PREAD is None:
        pytest.skip(f"the numbers of system calls on {platform.machine()} are not known here")
    try:
        Path(f"/proc/self/task/{os.getpid()}/syscall").read_text()
    except OSError as error:
        pytest.skip(f"the system call a process is in cannot be read: {error}")


class Halt:
    """The process of a run, to observe and stop.

    Args:
        store: Folder of its store, in the state before the process begins.
        checkpoints: Number of checkpoints of a whole run; the last two are at the end of training and of the test.
    """

    def __init__(self, store: Path, checkpoints: int) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._files_before = _files(store)
        self._epoch_before = epoch(store)
        self._process = Path()

    def follow(self, pid: int | None) -> None:
        """Record that the process has begun."""
        assert pid is not None
        self._process = Path(f"/proc/{pid}")

    def stop(self) -> bool:
        """Stop all threads; False if the process has ended."""
        begun = time.monotonic()
        try:
            os.kill(int(self._process.name), signal.SIGSTOP)
        except ProcessLookupError:
            return False
        while (states := {_state(task) for task in self._tasks()}) - {"T", "Z", ""}:
            waited = time.monotonic() - begun
            # An ending thread waits in the kernel for workers of its io_uring, which are stopped too.
            if waited > _PATIENCE_S and not states - {"T", "Z", "", "D"}:
                break
            assert waited < DEADLINE_S, f"the process cannot be stopped: {states}"
        return "T" in states

    def go_on(self) -> None:
        """Let the stopped process continue."""
        os.kill(int(self._process.name), signal.SIGCONT)

    def phases(self) -> list[str]:
        """The current phase of the process: exact if it is stopped, otherwise a hint."""
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
        except (
            FileNotFoundError,
            ProcessLookupError,
        ):  # The process ended before or during the listing.
            return []


_Files = dict[str, tuple[int, int]]


def _files(store: Path) -> _Files:
    """Modification time and size of every file of a store."""
    found: _Files = {}
    for path in store.glob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path.name] = (status.st_mtime_ns, status.st_size)
    return found


def _state(task: Path) -> str:
    """The state of a thread, one letter as in `ps`; empty if the thread has ended."""
    return _read(task / "stat").rpartition(")")[2][1:2]


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
