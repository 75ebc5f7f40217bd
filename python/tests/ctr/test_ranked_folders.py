"""Folders of runs on many ranks: rank 0 names and replaces them, and ranks that torchrun starts again go on.

Ranks are processes of the command with the environment variables of torchrun, or started by torchrun itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.ctr.test_ranked import arguments, measured, printed, start
from python.tests.ports import free_port
from python.tests.train.kept import check_whole, contents, kill_before, with_checkpoints
from python.tests.train.runs import command, ended
from python.tests.warm import warm_python
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=4_001, seed=3, rows_per_table=500)
FEW = ("--train-rows", "640", "--checkpoint-every", "4")
"""Ten steps."""


def run(
    server: ForkServerContext, told: list[str], folder: Path, count: int = 2
) -> tuple[list[int], list[str]]:
    """Exit codes and output of ranks with equal arguments."""
    for rank in range(count):
        (folder / f"printed-{rank}").unlink(missing_ok=True)
    codes = [ended(rank) for rank in start(server, count, [told] * count, folder)]
    return codes, printed(folder, count)


@pytest.fixture(scope="module")
def fresh(log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results of two ranks in an empty folder."""
    folder = tmp_path_factory.mktemp("fresh")
    codes, said = run(server, arguments(log, folder / "run", *FEW), folder)
    assert codes == [0, 0], said
    return measured(folder / "run")


def test_rank_0_names_the_folder_for_all_ranks_and_resume_takes_it(
    log: Path, server: ForkServerContext, tmp_path: Path, fresh: Any
) -> None:
    told = _without_out(arguments(log, tmp_path, *FEW))
    runs: list[Path] = []
    for _ in range(2):
        ranks = _start_in(server, tmp_path, told)
        assert [ended(rank) for rank in ranks] == [0, 0], printed(tmp_path, 2)
        runs.append(tmp_path / "out" / (tmp_path / "out/latest").readlink())
        assert measured(runs[-1]) == fresh
    assert sorted((tmp_path / "out").iterdir()) == sorted([*runs, tmp_path / "out/latest"])
    ranks = _start_in(server, tmp_path, [*told, "--resume"])
    assert [ended(rank) for rank in ranks] == [0, 0]
    assert "Nothing to do: the run is complete" in printed(tmp_path, 2)[0]
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_ranks_resume_where_an_earlier_start_has_left_its_lock(
    log: Path, server: ForkServerContext, tmp_path: Path, fresh: Any
) -> None:
    (tmp_path / "run/store").mkdir(parents=True)
    (tmp_path / "run/store/LOCK").touch()
    codes, said = run(server, arguments(log, tmp_path / "run", *FEW, "--resume"), tmp_path)
    assert codes == [0, 0], said
    assert measured(tmp_path / "run") == fresh


def test_all_ranks_fail_where_the_folder_cannot_be_named(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    (tmp_path / "out/latest").mkdir(parents=True)
    ranks = _start_in(server, tmp_path, _without_out(arguments(log, tmp_path, *FEW)))
    assert [ended(rank) for rank in ranks] == [2, 2]
    for said in printed(tmp_path, 2):
        assert "out/latest is not a link to the latest run: rename it" in said


@pytest.mark.parametrize("before", [1, 2])
def test_ranks_replace_a_run_of_one_process_or_of_ranks(
    log: Path, server: ForkServerContext, tmp_path: Path, fresh: Any, before: int
) -> None:
    out = tmp_path / "run"
    old = arguments(log, out, *FEW, "--dim", "4")
    if before == 1:
        process = server.Process(target=command, args=(old, tmp_path / "alone", {}, None))
        process.start()
        assert ended(process) == 0
    else:
        assert run(server, old, tmp_path)[0] == [0, 0]
    codes, said = run(server, arguments(log, out, *FEW), tmp_path)
    assert codes == [2, 2]
    for text in said:
        assert (
            f"{out}/store has the checkpoint of a run (task ctr, step 10 (640 rows), saved " in text
        )
    check_whole(out / "store")
    codes, said = run(server, arguments(log, out, *FEW, "--replace"), tmp_path)
    assert codes == [0, 0], said
    assert measured(out) == fresh
    assert not (tmp_path / "run.replaced").exists()


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 8])
def test_killed_while_it_replaces_the_old_run_of_ranks_is_kept(
    log: Path, server: ForkServerContext, tmp_path: Path, fresh: Any, number: int
) -> None:
    """Rank 0 is killed before one of its changes of folders; each of the first ones moves a part of the old run."""
    out, kept = tmp_path / "run", tmp_path / "run.replaced"
    assert run(server, arguments(log, out, *FEW, "--dim", "4"), tmp_path)[0] == [0, 0]
    old = list(contents(out / "store").values())
    told = arguments(log, out, *FEW, "--replace")
    ranks = _start_in(server, tmp_path, told, kill=number)
    codes = [ended(rank) for rank in ranks]
    assert codes[0] == -signal.SIGKILL
    assert codes[1] != 0
    (rows,) = with_checkpoints(out / "store", kept / "store")
    assert list(contents(rows).values()) == old
    before = contents(out, kept)
    for more in ([], ["--resume"]) if rows.parent == kept else ([],):
        codes, said = run(server, arguments(log, out, *FEW, *more), tmp_path)
        assert codes == [2, 2]
        for text in said:
            assert f"{kept} keeps a run" in text or f"{out}/store has the checkpoint" in text
    assert contents(out, kept) == before
    codes, said = run(server, told, tmp_path)
    assert codes == [0, 0], said
    assert measured(out) == fresh
    assert not kept.exists()


VICTIM = """
import os, signal, sys
from rowmill.cli import main
from rowmill.ctr.task import Log
from rowmill.train.run import Trainer

step, opened = Trainer.train_step, Log.open
dies = os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
before = os.environ["BEFORE"]

def train_step(trainer, *arguments):
    if dies and before == f"step {trainer.state.step}":
        os.kill(os.getpid(), signal.SIGKILL)
    return step(trainer, *arguments)

def open_log(*arguments):
    if dies and before == "log":
        os.kill(os.getpid(), signal.SIGKILL)
    return opened(*arguments)

Trainer.train_step, Log.open = train_step, open_log
sys.exit(main())
"""
"""A program that runs the command, and kills rank 0 in its first start."""


@pytest.mark.parametrize("flags", ["out", "no out", "replace"])
@pytest.mark.parametrize("before", ["log", "step 2", "step 6"])
def test_ranks_that_torchrun_starts_again_resume(
    log: Path, server: ForkServerContext, tmp_path: Path, fresh: Any, before: str, flags: str
) -> None:
    """They were killed before the folder was prepared, before the first checkpoint, or after it."""
    out = tmp_path / "run"
    if flags == "replace":
        assert run(server, arguments(log, out, *FEW, "--dim", "4"), tmp_path)[0] == [0, 0]
    told = arguments(log, out, *FEW, *(["--replace"] if flags == "replace" else []))
    ran = _torchrun(tmp_path, _without_out(told) if flags == "no out" else told, before)
    assert ran.returncode == 0, ran.stderr
    if flags == "no out":
        # The folder of a start that has written nothing may be left.
        out = tmp_path / "out" / (tmp_path / "out/latest").readlink()
        reports = list((tmp_path / "out").glob("*/report.json"))
        assert {path.resolve() for path in reports} == {(out / "report.json").resolve()}
    assert ("Resuming at step 4" in ran.stdout) == (before == "step 6")
    assert measured(out) == fresh
    assert not (tmp_path / "run.replaced").exists()
    check_whole(out / "store")


def test_a_restart_does_not_resume_a_run_that_the_command_would_not_overwrite(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    """The first start fails, because the folder has a run. The second must not continue that run."""
    out = tmp_path / "run"
    assert run(server, arguments(log, out, *FEW), tmp_path)[0] == [0, 0]
    before = contents(out)
    ran = _torchrun(tmp_path, arguments(log, out, *FEW, "--epochs", "2"), "never")
    assert ran.returncode != 0
    assert ran.stderr.count(f"rank 0: {out}/store has the checkpoint of a run") >= 2, ran.stderr
    assert contents(out) == before
    check_whole(out / "store")


def _torchrun(folder: Path, told: list[str], before: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(VICTIM)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launch += ["--max-restarts=1", "--monitor-interval=0.1", str(program)]
    return subprocess.run(
        [warm_python(), *launch, *told],
        env={**os.environ, "BEFORE": before},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def _without_out(told: list[str]) -> list[str]:
    place = told.index("--out")
    return told[:place] + told[place + 2 :]


def _start_in(server: ForkServerContext, folder: Path, told: list[str], kill: int = 0) -> list[Any]:
    """Start two ranks in a folder; with `kill`, rank 0 is killed before its change of folders with that number."""
    port = free_port()
    ranks = [
        server.Process(target=_rank, args=(folder, told, rank, port, kill if rank == 0 else 0))
        for rank in range(2)
    ]
    for rank in ranks:
        (folder / f"printed-{ranks.index(rank)}").unlink(missing_ok=True)
        rank.start()
    return ranks


def _rank(folder: Path, told: list[str], rank: int, port: int, kill: int) -> None:
    os.chdir(folder)
    if kill:
        kill_before(kill, str(folder / "run"), folder / "counted")
    world = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command(told, folder / f"printed-{rank}", {**world, **where}, None)
