"""A click model whose rows are on a storage node, while it trains. `make storage-demo` runs this program.

1. Generate a click log.
2. Start a storage node with memory for a quarter of the rows.
3. Train, and publish each change of a row. A follower fills the node and sends it the changes.
4. Score rows of the log with rows from the node, and with rows of the run: the scores are equal to the last bit.

Node, follower and trainer are separate processes. Everything is in `out/storage`, which the next run replaces.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterator

ROWMILL = (sys.executable, "-m", "rowmill")
FOLDER = Path("out/storage")
LOG, RUN = FOLDER / "log", FOLDER / "run"
ROWS, TABLE_ROWS = 100_000, 60_000
DIM = 128
NODE = """
listen = "127.0.0.1:0"
metrics = "127.0.0.1:0"

[[subsystem]]
folder = "node"
filled = true
memory = "{memory}MiB"
any_host = "write"
"""
MEMORY_MIB = 112
"""A quarter of this is kept for the next fill, and the index takes some of the rest. The rows have 300 MB."""
LOOKUPS = "rowmill_storage_lookups_total"
SHOWN_S = 5.0
"""Time between two lines of the follower that are shown."""
QUIET_S = 3.0
"""A follower that prints nothing for so long, after the trainer has ended, has sent every change."""
WAIT_S = 120.0
"""Longest wait for a line of a process."""


class Failed(Exception):
    """A step of the demo failed; the message says which and why."""


def rowmill(*arguments: str | Path) -> None:
    """Run a command to its end."""
    print("\n$ rowmill", *arguments, flush=True)
    done = subprocess.run([*ROWMILL, *map(str, arguments)])
    if done.returncode != 0:
        raise Failed(f"`rowmill {arguments[0]}` ended with code {done.returncode}: see its message")


class Lines:
    """The lines that a process prints, as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=[process])
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "it is piped"
        with process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip())

    def next(self, seconds: float) -> str | None:
        """The next line, or `None` if none comes in time."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Wait until the process has closed its output."""
        self._reader.join()


@contextmanager
def background(*arguments: str | Path) -> Iterator[Lines]:
    """A command that runs until the block ends; gives its output."""
    print("\n$ rowmill", *arguments, " &", flush=True)
    process = subprocess.Popen([*ROWMILL, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    lines = Lines(process)
    try:
        yield lines
        if process.poll() is not None:
            raise Failed(
                f"`rowmill {' '.join(map(str, arguments[:2]))}` has ended: see its message"
            )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        lines.end()


@contextmanager
def trained(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A training command that has made its first checkpoint; it must end well before the block does."""
    print("\n$ rowmill", *arguments, " &", flush=True)
    process = subprocess.Popen([*ROWMILL, *map(str, arguments)])
    try:
        while not (RUN / "store/MANIFEST").exists() and process.poll() is None:
            time.sleep(0.05)
        yield process
        if process.wait() != 0:
            raise Failed(f"`rowmill train` ended with code {process.returncode}: see its message")
    finally:
        process.kill()  # Does nothing where it has ended.
        process.wait()


def metric(address: str, name: str) -> float:
    """A metric of the node, summed over its subsystems."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        text = response.read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def loopback_bytes() -> int:
    """Bytes that all processes have sent over loopback so far."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def followed(lines: Lines, trainer: subprocess.Popen[bytes]) -> str:
    """Show what the follower says until it has sent every change; gives the lag of the last one."""
    lag, shown, line = "no change", 0.0, None
    while True:
        said = lines.next(QUIET_S)
        if said is None and trainer.poll() is not None:
            print(f"  follower: {line}", flush=True)
            return lag
        line = said or line
        if said and (found := re.search(r"seen ([0-9.]+ s) after", said)):
            lag = found[1]
        if said and time.monotonic() > shown + SHOWN_S:
            print(f"  follower: {said}", flush=True)
            shown = time.monotonic()


def scores(out: str, *options: str) -> np.ndarray:
    """Scores of the log by `rowmill predict`."""
    file = FOLDER / f"{out}.parquet"
    rowmill("predict", RUN, "--data", LOG, "--out", file, *options)
    return pq.read_table(file)["score"].to_numpy()


def demo() -> None:
    """Run all steps."""
    begun = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    (FOLDER / "node.toml").write_text(NODE.format(memory=MEMORY_MIB))
    sizes = ("--rows", str(ROWS), "--rows-per-table", str(TABLE_ROWS))
    rowmill("data", "generate", "--out", LOG, *sizes)
    with background("storage", "serve", "--config", FOLDER / "node.toml") as node:
        line = node.next(WAIT_S)
        if not line:
            raise Failed("the node did not listen: see its message")
        ready = json.loads(line)
        url, metrics = ready["ready"][0], ready["metrics"]
        train = ("train", "--data", LOG, "--out", RUN, "--dim", str(DIM), "--feed", "1GiB")
        often = ("--checkpoint-every", "50", "--log-every", "1000")
        with (
            trained(*train, *often) as trainer,
            background("storage", "follow", RUN, url) as follower,
        ):
            lag = followed(follower, trainer)
        rowmill("storage", "status", url)
        own = scores("own")
        sent, looked_up, start = loopback_bytes(), metric(metrics, LOOKUPS), time.monotonic()
        remote = scores("remote", "--rows", url)
        seconds = time.monotonic() - start
        sent, looked_up = loopback_bytes() - sent, metric(metrics, LOOKUPS) - looked_up
    differ = int((own.view(np.uint32) != remote.view(np.uint32)).sum())
    print(f"""
scores that differ         {differ} of {len(own):,}
rows looked up on the node {looked_up:,.0f}, in {seconds:.1f} s of rowmill predict: {looked_up / seconds:,.0f} per second
bytes over loopback        {sent:,}, in both directions; the rows themselves have {looked_up * DIM * 4:,.0f}
last change on the node    {lag} after it was published
time                       {time.monotonic() - begun:.0f} s""")
    if differ:
        raise Failed("scores with rows of the node differ from those with rows of the run")


if __name__ == "__main__":
    try:
        demo()
    except Failed as failure:
        sys.exit(f"storage_demo: {failure}")
