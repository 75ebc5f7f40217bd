"""Scheduling policy and priorities of the threads of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python.tests.serve.workers import Bundles, make_bundles, worker

_MEMORY = ("--http-port", "0", "--metrics-port", "0", "--memory", "16MiB", "--wire-memory", "32MiB")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    return make_bundles(tmp_path_factory.mktemp("bundles"))


def _tasks(process: int) -> dict[int, str]:
    """Names of threads, except of those that a library has started when it was imported."""
    tasks = {int(path.name): path for path in Path(f"/proc/{process}/task").iterdir()}
    names = {task: (path / "comm").read_text().strip() for task, path in tasks.items()}
    return {
        task: name for task, name in names.items() if task == process or name.startswith("rowmill")
    }


def _policies(process: int) -> set[int]:
    return {os.sched_getscheduler(task) for task in _tasks(process)}


def _nicer(process: int) -> int:
    """How many threads are nicer than this process, by the number that batches beside the first are."""
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    tasks = [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    return sum(os.getpriority(os.PRIO_PROCESS, task) == mine + 5 for task in tasks)


def test_nothing_interrupts_batches_and_all_but_the_first_yield(bundles: Bundles) -> None:
    dlrm = bundles.paths[0]
    with worker(dlrm, *_MEMORY, "--dense-batches", "3") as found:
        assert len(_tasks(found.process.pid)) > 2
        assert _policies(found.process.pid) == {os.SCHED_BATCH}
        # A thread that runs batches may have started threads of a library.
        assert _nicer(found.process.pid) >= 2
    with worker(dlrm, *_MEMORY, "--dense-batches", "1") as found:
        assert _nicer(found.process.pid) == 0


def test_lookups_alone_have_the_usual_policy(bundles: Bundles, tmp_path: Path) -> None:
    dlrm, socket = bundles.paths[0], tmp_path / "socket"
    dense = ("--role", "dense", "--listen", f"shm://{socket}", "--metrics-port", "0")
    cpu = ("--role", "cpu", "--dense", f"shm://{socket}")
    with worker(dlrm, *dense) as other, worker(dlrm, *cpu, *_MEMORY) as found:
        assert _policies(other.process.pid) == {os.SCHED_BATCH}
        assert _policies(found.process.pid) == {os.SCHED_OTHER}


def test_a_policy_that_was_chosen_stays() -> None:
    program = """
import os
from rowmill.serve.scheduling import keep_batches_running
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
keep_batches_running()
assert os.sched_getscheduler(0) == os.SCHED_IDLE
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
