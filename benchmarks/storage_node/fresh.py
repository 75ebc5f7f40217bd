"""How long after its change in training a row shows in a pooled answer of a node that follows the feed."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.storage_node.changes import PERIOD_S
from benchmarks.storage_node.node import ROWMILL, serving
from benchmarks.storage_node.part import Part

_HERE = Path(__file__).parent
_START_S = 2.0
"""From the signal to start to the first change."""
_END_S = 60.0


def fresh(part: Part) -> None:
    """A new trainer, node and follower per round."""
    for number in range(part.settings.rounds):
        part.cells.measure(lambda: _measure(part), part="fresh", round=number)


def _measure(part: Part) -> dict[str, Any]:
    folder, seconds = part.folder / "fresh", part.settings.fresh_s
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run = folder / "run"
    subsystem = 'filled = true\nmemory = "1GiB"'
    python = (sys.executable,)
    with (
        serving(folder, subsystem) as node,
        _process([*python, str(_HERE / "trainer.py"), str(run), str(seconds)]) as trainer,
    ):
        _line(trainer)
        with _process([*ROWMILL, "storage", "follow", str(run), node.url]) as follower:
            # Its first line says that the node is filled.
            if not _text(follower):
                raise RuntimeError("rowmill storage follow ended: its message is above")
            batches = str(int(seconds / PERIOD_S))
            reader_command = [str(_HERE / "fresh_reader.py"), node.url, batches, str(seconds)]
            with _process([*python, *reader_command]) as reader:
                _line(reader)
                start = json.dumps({"origin": time.monotonic() + _START_S})
                for process in (trainer, reader):
                    _tell(process, start)
                trained = _line(trainer)
                found = _line(reader)
                _tell(trainer, "")
            if follower.poll() is not None:
                raise RuntimeError("rowmill storage follow ended: its message is above")
            # Not SIGINT, which processes in the background of a script ignore.
            follower.terminate()
    shutil.rmtree(folder)
    return {**trained, **found}


@contextmanager
def _process(command: Sequence[str]) -> Generator[subprocess.Popen[str]]:
    """A process with pipes, ended with the block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
        # Reads what is left, so that no full pipe keeps the process from its end.
        process.communicate(timeout=_END_S)
    finally:
        process.kill()
        process.communicate()


def _text(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None, "it is piped"
    return process.stdout.readline()


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = _text(process)
    if not line:
        raise RuntimeError(f"{process.args} ended: its message is above")
    return json.loads(line)


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None, "it is piped"
    process.stdin.write(line + "\n")
    process.stdin.flush()
