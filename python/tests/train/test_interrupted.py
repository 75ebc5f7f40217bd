"""An interrupted run prints how to resume, and a second run in the same folder leaves the first alone.

Ctrl-C is sent during training, while modules load, and to a run in the background. `kill -9` is sent repeatedly before the
run has done anything. A second run starts in a folder that is in use. Nothing is simulated: these are processes of
`rowmill train`. `test_exactly_once.py` kills at any point.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.train.runs import DEADLINE_S, ended, epoch, fork, until
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext


LOG = GenerateConfig(rows=8_000, seed=3, rows_per_table=1_000)


@pytest.fixture(scope="module")
def whole(log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole")
    assert ended(fork(server, arguments(log, out), out / "printed.txt")) == 0
    return out


def arguments(log: Path, out: Path, *more: str) -> list[str]:
    settings = {
        "--data": log,
        "--out": out,
        "--memory": "64MiB",
        "--row-memory": "512KiB",
        "--threads": 1,
        "--batch": 64,
        "--epochs": 2,
        "--checkpoint-every": 10,
        "--log-every": 5,
    }
    flags = [str(part) for setting in settings.items() for part in setting]
    return ["train", *flags, *more]


def start(log: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rowmill", *arguments(log, out, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def measured(out: Path) -> dict[str, Any]:
    """The results that must not depend on kills: the report without times and counts of where rows were found."""
    report = json.loads((out / "report.json").read_text())
    curve = [
        {name: point[name] for name in ("step", "rows", "logloss", "auc", "ne")}
        for point in report["curve"]
    ]
    run = {name: report["run"][name] for name in ("steps", "live_rows", "train_rows")}
    return {"test": report["test"], "curve": curve, "run": run}


@pytest.mark.parametrize("after", [0, 3])
def test_kills_during_the_start_lose_no_progress(
    log: Path, whole: Path, server: ForkServerContext, tmp_path: Path, after: int
) -> None:
    """Killed as soon as it has locked its store: before the first checkpoint, and when it resumes from the third."""
    out, printed = tmp_path / "killed", tmp_path / "printed.txt"
    moments: list[Callable[[int | None], bool]] = [lambda _: epoch(out / "store") >= after]
    moments += [lambda pid: locked_by(out / "store", pid)] * 3
    stood: list[int] = []
    for moment in moments:
        process = fork(server, arguments(log, out, "--resume"), printed)
        until(lambda moment=moment, pid=process.pid: moment(pid), process.is_alive)
        process.kill()
        assert ended(process) == -signal.SIGKILL
        stood.append(epoch(out / "store"))
    assert stood == sorted(stood)
    assert ended(fork(server, arguments(log, out, "--resume"), printed)) == 0
    assert measured(out) == measured(whole)


def locked_by(store: Path, pid: int | None) -> bool:
    lock = store / "LOCK"
    return lock.exists() and lock.read_text() == f"{pid}\n"


def test_ctrl_c_ends_a_run_with_one_line_that_says_how_to_resume(
    log: Path, whole: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    out = tmp_path / "interrupted"
    process = start(log, out)
    until(lambda: epoch(out / "store") >= 3, lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 130
    assert "Traceback" not in printed
    assert printed.splitlines()[-1] == (
        "rowmill: interrupted; to continue from the last checkpoint, run the same command with --resume"
    )
    assert ended(fork(server, arguments(log, out, "--resume"), tmp_path / "printed.txt")) == 0
    assert measured(out) == measured(whole)


def test_ctrl_c_while_modules_load_prints_one_line(log: Path, tmp_path: Path) -> None:
    process = start(log, tmp_path / "out")
    loads = Path(f"/proc/{process.pid}/maps")
    until(lambda: "/torch/" in loads.read_text(), lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 130
    assert printed == "rowmill: interrupted before any change\n"
    assert not (tmp_path / "out").exists()


def test_a_background_run_ignores_ctrl_c(log: Path, tmp_path: Path) -> None:
    """A shell starts background processes with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(log, tmp_path / "out", "--epochs", "0")
    finally:
        signal.signal(signal.SIGINT, before)
    loads = Path(f"/proc/{process.pid}/maps")
    until(lambda: "/torch/" in loads.read_text(), lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    assert "test AUC" in process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 0


def test_a_second_run_into_the_same_folder_does_not_disturb_the_first(
    log: Path,
    whole: Path,
    server: ForkServerContext,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "shared"
    first = fork(server, arguments(log, out), tmp_path / "printed.txt")
    until(lambda: epoch(out / "store") >= 1, first.is_alive)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    try:
        assert main(arguments(log, out)) == 2
        assert "has the checkpoint of a run" in capsys.readouterr().err
        assert main(arguments(log, out, "--resume")) == 1
        assert f"in use by another process (pid {first.pid})" in capsys.readouterr().err
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert ended(first) == 0
    assert measured(out) == measured(whole)
