"""A process of `rowmill storage serve`, and what it takes."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import device_bytes
from benchmarks.serving.worker import cpu_s, running, samples

ROWMILL = (sys.executable, "-m", "rowmill")
START_S = 120.0
"""Longest wait for a node."""
WIRE_MIB = 64
_HEAD = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"
wire_memory = "{wire}MiB"
log_level = "warn"
"""
THREADS_1 = "network_threads = 1\npooling_threads = 1\n"
"""Settings of a node that has one core."""


@dataclass(frozen=True)
class Node:
    """A running node.

    Attributes:
        process: Its process.
        url: Its only namespace.
        metrics_address: Where its metrics are.
    """

    process: subprocess.Popen[str]
    url: str
    metrics_address: str

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.split("/")[2].rsplit(":", 1)[1])

    def through(self, port: int) -> str:
        """Its URL by way of a relay at another port."""
        return self.url.replace(f":{self.port}/", f":{port}/", 1)

    def cpu_s(self) -> float:
        """CPU time so far, all threads, user and system."""
        return cpu_s(self.process.pid)

    def read_bytes(self) -> int:
        """Bytes so far that it read from devices."""
        return device_bytes(self.process.pid)[0]

    def most_resident_bytes(self) -> int:
        """Its highest resident memory so far (VmHWM)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return most_resident_bytes(status)

    def metric(self, name: str) -> float:
        """A metric, summed over its labels."""
        url = f"http://{self.metrics_address}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = samples(answer.read().decode())
        values = [value for key, value in found.items() if key.split("{")[0] == name]
        if not values:
            raise KeyError(f"the node has no metric {name}")
        return sum(values)


def most_resident_bytes(status: str) -> int:
    """VmHWM of a file /proc/PID/status."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.M)
    if found is None:
        raise ValueError("this status has no VmHWM")
    return int(found[1]) * 1024


@contextmanager
def serving(
    folder: Path, subsystem: str, *, settings: str = "", inside: Sequence[str] = ()
) -> Generator[Node]:
    """Start a node, and end it afterwards.

    Args:
        folder: For its settings and its log; a node that is filled keeps its rows there as well.
        subsystem: Lines of its only subsystem, beside folder and access.
        settings: More lines of settings of the node.
        inside: What the command begins with, to pin or to limit it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, log = folder / "node.toml", folder / "node.log"
    access = '[[subsystem]]\nfolder = "node"\nany_host = "write"\n'
    config.write_text(_HEAD.format(wire=WIRE_MIB) + settings + access + subsystem + "\n")
    command = [*inside, *ROWMILL, "storage", "serve", "--config", str(config)]
    with running(command, log, dict(os.environ)) as process:
        assert process.stdout is not None, "it is piped"
        watchdog = threading.Timer(START_S, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise RuntimeError(f"the node ended:\n{log.read_text()}")
        ready = json.loads(line)
        yield Node(process, ready["ready"][0], ready["metrics"])


def pinned(core: int) -> tuple[str, ...]:
    """What a command begins with, to run on one core."""
    return ("taskset", "--cpu-list", str(core))
