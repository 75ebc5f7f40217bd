"""A run that is killed or interrupted again and again, and goes on each time, ends as one that never stopped.

`kill -9` comes at moments chosen by what the run has written: before its first checkpoint, right after one, between
two, while one is being written, in the second epoch. Nothing is simulated: these are processes of `rowmill train`.
Those that are killed are forked from one that has loaded the modules already, which takes most of a short run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rowmill.cli import main
from rowmill.config import GenerateConfig
from rowmill.data.generate import generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    generate(folder, GenerateConfig(rows=8_000, seed=3, rows_per_table=1_000))
    return folder


@pytest.fixture(scope="module")
def server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["rowmill.cli", "rowmill.train"])
    return context


@pytest.fixture(scope="module")
def whole(log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run that nobody disturbs leaves behind."""
    out = tmp_path_factory.mktemp("whole")
    process = fork(server, log, out)
    process.join(DEADLINE_S)
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


def fork(server: ForkServerContext, log: Path, out: Path, *more: str) -> BaseProcess:
    process = server.Process(target=main, args=(arguments(log, out, *more),))
    process.start()
    return process


def start(log: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rowmill.cli", *arguments(log, out, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(met: Callable[[], bool], runs: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not met():
        assert runs(), "the run ended before that moment"
        assert time.monotonic() < deadline, "the run never came to that moment"
        time.sleep(0.0005)


def epoch(store: Path) -> int:
    """Number of the last checkpoint, 0 before the first."""
    try:
        return json.loads((store / "MANIFEST").read_text().split("\n", 1)[1])["epoch"]
    except FileNotFoundError:
        return 0


def measured(out: Path) -> dict[str, Any]:
    """What must not depend on kills: all of the report but times, and where rows were found."""
    report = json.loads((out / "report.json").read_text())
    curve = [
        {name: point[name] for name in ("step", "rows", "logloss", "auc", "ne")}
        for point in report["curve"]
    ]
    run = {name: report["run"][name] for name in ("steps", "live_rows", "train_rows")}
    return {"test": report["test"], "curve": curve, "run": run}


def test_a_run_killed_at_seven_moments_ends_with_the_bits_of_one_that_never_was(
    log: Path, whole: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    store = out / "store"
    last = epoch(whole / "store")
    moments: list[Callable[[], bool]] = [
        lambda: (store / "group-0.log").exists(),
        lambda: epoch(store) >= 2,
        lambda: epoch(store) >= 6 and (store / f"index-{epoch(store) + 1}.delta").exists(),
        lambda: epoch(store) >= 9 and (store / "MANIFEST.new").exists(),
        lambda: any(store.glob(f"attachment-{max(epoch(store), 12) + 1}-*")),
        lambda: epoch(store) >= last * 3 // 4,
        lambda: epoch(store) >= last - 1,
    ]
    stood: list[int] = []
    for moment in moments:
        process = fork(server, log, out, "--resume")
        until(moment, process.is_alive)
        process.kill()
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL
        stood.append(epoch(store))
    assert not (out / "report.json").exists()
    assert stood == sorted(stood)
    assert stood[0] == 0
    assert len(set(stood)) >= 5, "the kills were not spread over the run"
    end = fork(server, log, out, "--resume")
    end.join(DEADLINE_S)
    assert measured(out) == measured(whole)


def test_ctrl_c_ends_a_run_with_one_line_that_says_how_to_go_on(
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
        "rowmill: interrupted; the same command with --resume goes on from the last checkpoint"
    )
    end = fork(server, log, out, "--resume")
    end.join(DEADLINE_S)
    assert measured(out) == measured(whole)


def test_ctrl_c_while_modules_load_is_one_line_too(log: Path, tmp_path: Path) -> None:
    process = start(log, tmp_path / "out")
    loads = Path(f"/proc/{process.pid}/maps")
    until(lambda: "/torch/" in loads.read_text(), lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    printed = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 130
    assert printed == "rowmill: interrupted before anything was done\n"
    assert not (tmp_path / "out").exists()


def test_ctrl_c_is_not_heard_by_a_run_in_the_background(log: Path, tmp_path: Path) -> None:
    """A shell starts those with the signal ignored."""
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
    first = fork(server, log, out)
    until(lambda: epoch(out / "store") >= 1, first.is_alive)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    try:
        for more in ([], ["--resume"]):
            assert main(arguments(log, out, *more)) == 1
            assert f"in use by another process (pid {first.pid})" in capsys.readouterr().err
    finally:
        os.kill(first.pid, signal.SIGCONT)
    first.join(DEADLINE_S)
    assert measured(out) == measured(whole)
