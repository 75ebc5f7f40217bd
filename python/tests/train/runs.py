"""Runs of `rowmill train` as processes, for tests that stop and kill them.

The processes are forked from one that has already imported the modules, because the import would take most of the time of a
short run. They run the command itself, `rowmill.cli.main`.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rowmill.cli import main
from rowmill.train.run import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess

DEADLINE_S = 60.0


def fork(
    server: ForkServerContext,
    arguments: list[str],
    printed: Path,
    environment: Mapping[str, str] | None = None,
    tell: tuple[int, Path] | None = None,
) -> BaseProcess:
    """Start `rowmill` with these arguments; its output is appended to a file.

    With `tell`, the process creates that file when it begins the training step with that number, counted from 1.
    """
    process = server.Process(target=command, args=(arguments, printed, environment or {}, tell))
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """Wait for the end of a run; returns its exit code."""
    process.join(DEADLINE_S)
    assert process.exitcode is not None, "the run does not end"
    return process.exitcode


def until(met: Callable[[], bool], runs: Callable[[], bool]) -> None:
    """Wait until a condition holds during a run."""
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert runs(), "the run ended before the condition held"
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.0005)


def epoch(store: Path) -> int:
    """Number of the last checkpoint; 0 before the first."""
    try:
        return json.loads((store / "MANIFEST").read_text().split("\n", 1)[1])["epoch"]
    except FileNotFoundError:
        return 0


def scalars(events: Path, *tags: str) -> dict[str, list[tuple[int, float]]]:
    """The points that TensorBoard shows for a folder of events: step and value by tag."""
    with TemporaryDirectory() as name:
        # TensorBoard orders files by name, and names contain the second of creation, which is too coarse for short runs.
        files = sorted(events.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        for number, file in enumerate(files):
            shutil.copy(file, Path(name) / f"events.out.tfevents.{number:010}")
        read = EventAccumulator(name)
        read.Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in tags}


def command(
    arguments: list[str],
    printed: Path,
    environment: Mapping[str, str],
    tell: tuple[int, Path] | None,
) -> None:
    os.environ.update(environment)
    file = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    if tell is not None:
        _tell_step(*tell)
    sys.exit(main(arguments))


def _tell_step(number: int, file: Path) -> None:
    original = Trainer.train_step
    begun = itertools.count(1)

    def train_step(trainer: Trainer, *arguments: Any) -> Any:
        if next(begun) == number:
            file.touch()
        return original(trainer, *arguments)

    Trainer.train_step = train_step
