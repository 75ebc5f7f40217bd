"""A rank of `benchmarks/dlrm_scaling/dlrm.py` dies: the others end within seconds, and report which rank and which step.

What could break: ranks that wait for minutes in a collective, an error about sockets, the wrong rank in the report, a rank
that torchrun ends before it has reported, and a rank that ignores SIGTERM. Ranks are real processes and are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.dlrm_scaling.launch import RANK, RankProcess, hear_out, run_ranks
from benchmarks.dlrm_scaling.settings import STEPS_MAX, Settings
from python.tests.ports import free_port
from python.tests.warm import warm_python
from rowmill.errors import ExchangeFailed

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

LONG = ("--config", "mlperf", "--scale", "0.002", "--threads", "1", "--steps")


@pytest.mark.usefixtures("forked")
def test_the_command_ends_and_names_a_killed_rank() -> None:
    # So many steps that no rank ends by itself, however late this process reads of the sixth.
    settings = Settings(config="mlperf", scale=0.002, ranks=3, threads=1, steps=STEPS_MAX)

    def kill(step: int) -> None:
        if step == 6:
            ranks = ranks_of_this_process()
            assert len(ranks) == 3
            os.kill(ranks[1], signal.SIGKILL)

    with pytest.raises(ExchangeFailed, match=r"rank 1 was ended by SIGKILL in step \d+$") as raised:
        run_ranks(settings, kill)
    assert 5 <= int(str(raised.value).split()[-1]) < STEPS_MAX
    assert ranks_of_this_process() == []


def test_each_step_is_told_once_when_one_read_brings_several(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    ended = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process = RankProcess(0, ended, ours, tmp_path / "log")
    failed = b'{"failed": "no disk", "step": 3, "waiting": false, "invalid": false}\n'
    os.write(theirs, b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"done": {"loss": 0.5}}\n' + failed)
    os.close(theirs)
    told: list[int] = []
    hear_out([process], told.append)
    os.close(ours)
    ended.wait()
    assert told == [1, 2, 3]
    assert process.result == {"loss": 0.5}
    assert process.failure is not None
    assert process.step == 3


ROOT = RANK.parents[2]
PROGRAM = RANK.with_name("dlrm.py")

VICTIM = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.dlrm_scaling.step import Trainer
from benchmarks.dlrm_scaling.dlrm import main

step, taken = Trainer.step, []

def dies(*arguments):
    taken.append(None)
    if len(taken) == 7 and os.environ["RANK"] == os.environ["VICTIM"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*arguments)

Trainer.step = dies
sys.exit(main())
"""
"""A program that runs the command, and kills one rank in its seventh step."""


@pytest.mark.parametrize("victim", [0, 1])
def test_under_torchrun_the_other_rank_names_a_killed_rank(tmp_path: Path, victim: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(VICTIM)
    done = subprocess.run(
        [
            *(warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            # torchrun ends the other rank at once.
            "--monitor-interval=0.001",
            *(str(program), *LONG, "500", "--out", str(tmp_path)),
        ],
        env={**os.environ, "VICTIM": str(victim)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("dlrm:")]
    assert said == [
        f"dlrm: rank {victim} was lost in step 7: it ended without a message; this run has no results"
    ], done.stderr
    assert not (tmp_path / "dlrm.json").exists()


def test_without_torchrun_the_other_rank_names_a_killed_rank(tmp_path: Path) -> None:
    """Ranks that torchrun does not end when one is lost, as on separate machines."""
    program = tmp_path / "program.py"
    program.write_text(VICTIM)
    port = free_port()
    ranks = [
        subprocess.Popen(
            [warm_python(), program, *LONG, "500", "--out", tmp_path],
            env={**environment(rank, 3, port), "VICTIM": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [rank.communicate(timeout=300)[1].splitlines()[-1:] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [1, -signal.SIGKILL, 1], said
    line = "dlrm: rank 1 was lost in step 7: it ended without a message; this run has no results"
    assert said[0] == said[2] == [line]


def test_a_rank_ends_on_sigterm(tmp_path: Path) -> None:
    """SIGTERM is deferred only while a lost rank may still be reported."""
    rank = subprocess.Popen(
        [
            *(warm_python(), PROGRAM, *LONG, "100000"),
            *("--out", tmp_path, "--store", tmp_path / "store"),
        ],
        env=environment(0, 1, free_port()),
    )
    try:
        while not (tmp_path / "store").exists():
            assert rank.poll() is None
            time.sleep(0.05)
        rank.terminate()
        assert rank.wait(60) == 128 + signal.SIGTERM
    finally:
        rank.kill()


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The environment variables that torchrun sets for a rank."""
    of_rank = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    return {**os.environ, **of_rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def ranks_of_this_process() -> list[int]:
    """Process ids of ranks, in the order in which they were started."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == os.getpid() and str(RANK).encode() in command:
                found.append(int(folder.name))
    return sorted(found)
