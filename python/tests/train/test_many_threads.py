"""Runs with more threads than cores end, and two such runs are bit-identical.

Batches are large enough that every store call is divided over threads, and the rows do not fit into memory.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rowmill
from python.tests.train.runs import fork
from rowmill.ctr.settings import GenerateConfig
from rowmill.train.state import ATTACHMENT

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess
    from pathlib import Path

LOG = GenerateConfig(rows=16_000, seed=9, rows_per_table=4_000)
HANGS_S = 240.0
"""A run that takes longer counts as hanging; on an idle machine it takes some seconds."""


def arguments(log: Path, out: Path, *more: str) -> list[str]:
    settings = {
        "--data": log,
        "--out": out,
        "--memory": "64MiB",
        "--row-memory": "4MiB",
        "--batch": 1024,
        "--log-every": 2,
        "--checkpoint-every": 6,
    }
    return ["train", *(str(part) for setting in settings.items() for part in setting), *more]


def to_the_end(run: BaseProcess, printed: Path) -> None:
    """Wait for a run; a hanging run is killed and fails the test."""
    run.join(HANGS_S)
    if run.exitcode is None:
        run.kill()
        run.join()
        pytest.fail(f"the run hangs; it printed {printed.read_text()}")
    assert run.exitcode == 0, printed.read_text()


def left(out: Path) -> dict[str, Any]:
    """All results of a run that must be bit-identical: losses, test metrics, rows with state, dense weights."""
    report = json.loads((out / "report.json").read_text())
    found: dict[str, Any] = {
        "test": report["test"],
        "curve": [(point["step"], point["rows"], point["logloss"]) for point in report["curve"]],
    }
    with rowmill.open(out / "store", memory="256MiB", read_only=True) as store:
        for name in store.table_names():
            table = store.open_table(name)
            ids = np.sort(np.concatenate([ids for ids, _ in table.scan()]))
            rows = np.concatenate([table.get(ids), table.get_state(ids)], axis=1)
            found[name] = (ids.tobytes(), rows.tobytes())
        packed = store.attachment(ATTACHMENT)
        assert packed is not None
        content = torch.load(io.BytesIO(packed), weights_only=True)
        found |= {name: weight.numpy().tobytes() for name, weight in content["model"].items()}
    return found


@pytest.mark.timeout(3 * HANGS_S)
@pytest.mark.parametrize("more", [(), ("--in-flight", "4", "--staleness-bound", "2")], ids=str)
def test_two_runs_with_sixteen_threads_end_and_are_bit_identical(
    log: Path, server: ForkServerContext, tmp_path: Path, more: tuple[str, ...]
) -> None:
    outs = [tmp_path / "one", tmp_path / "two"]
    for out in outs:
        printed = out.with_suffix(".txt")
        to_the_end(fork(server, arguments(log, out, "--threads", "16", *more), printed), printed)
    one, two = map(left, outs)
    assert len(one["curve"]) > 4
    if not more:  # Above bound 0, the order of steps depends on timing.
        assert [name for name in one if one[name] != two[name]] == []


@pytest.mark.timeout(2 * HANGS_S)
def test_two_ranks_with_eight_threads_each_and_steps_in_flight_end(
    log: Path, tmp_path: Path
) -> None:
    torchrun = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
    train = arguments(log, tmp_path / "run", "--threads", "8", "--in-flight", "2")
    run = subprocess.Popen(
        [sys.executable, *torchrun, "-m", "rowmill", *train],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # A process group, so that all ranks can be killed together.
    )
    try:
        printed, _ = run.communicate(timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        pytest.fail(f"the ranks hang; they printed {run.communicate()[0]}")
    assert run.returncode == 0, printed
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["config"]["train"]["threads"] == 8
    assert report["test"]["auc"] > 0.5
