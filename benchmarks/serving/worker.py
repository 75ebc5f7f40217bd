"""A process of `rowmill serve`, or another server, and what it takes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

START_S = 900.0
"""Longest wait for a worker: it checks every file of a bundle."""
_END_S = 60.0
_CPU_CLOCK = 2


@dataclass
class Worker:
    """A running server.

    Attributes:
        process: Its process.
        addresses: What it printed when it was ready.
        inside: Prefix of commands that run in its network namespace.
    """

    process: subprocess.Popen[str]
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    inside: tuple[str, ...] = ()

    def cpu_s(self) -> float:
        """CPU time so far of the process and its children, all threads, user and system."""
        return sum(cpu_s(pid) for pid in _family(self.process.pid))

    def huge_pages(self) -> float:
        """The part of its anonymous memory that is in huge pages."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        fields = dict(line.split(":") for line in text.splitlines()[1:])
        kib = {name: int(fields[name].split()[0]) for name in ("Anonymous", "AnonHugePages")}
        return kib["AnonHugePages"] / max(kib["Anonymous"], 1)

    def metrics(self) -> dict[str, float]:
        """The samples of its metrics: name with labels -> value."""
        url = f"http://{self.addresses['metrics']}/metrics"
        read = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
        done = subprocess.run(
            [*self.inside, sys.executable, "-c", read], check=True, capture_output=True, text=True
        )
        return samples(done.stdout)


@contextmanager
def worker(
    arguments: Sequence[str | Path],
    log: Path,
    *,
    inside: tuple[str, ...] = (),
    threads: int = 1,
) -> Generator[Worker]:
    """Start `rowmill serve` and wait until it is ready. Each dense layer runs on `threads` threads."""
    command = [*inside, sys.executable, "-m", "rowmill", "serve", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with running(command, log, environment) as process:
        assert process.stdout is not None
        line = _line(process, process.stdout)
        if not line:
            raise RuntimeError(f"{' '.join(command)} ended:\n{log.read_text()}")
        yield Worker(process, json.loads(line), inside)


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: dict[str, str]
) -> Generator[subprocess.Popen[str]]:
    """A process whose errors go to a file; it is ended afterwards."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def samples(text: str) -> dict[str, float]:
    """The samples of metrics in the text format of Prometheus."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in lines}


def cpu_s(pid: int) -> float:
    """CPU time so far of a process, all threads; /proc/PID/stat would count in steps of 10 ms."""
    # The clock of a process, as clock_getcpuclockid(3) makes it on Linux.
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK)


def _line(process: subprocess.Popen[str], output: IO[str]) -> str:
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        return output.readline()
    finally:
        watchdog.cancel()


def _family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found
