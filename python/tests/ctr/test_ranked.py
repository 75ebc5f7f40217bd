"""`rowmill train` on several ranks gives the steps of one process, and resumes from checkpoints of all ranks.

Ranks are processes of the command with the environment variables of torchrun; one test uses torchrun itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rowmill
from python.tests.train.ranked import kill_second, printed, run_ranks, start
from python.tests.train.runs import ended, fork
from python.tests.warm import warm_python
from rowmill.config import ConfigError, load_config
from rowmill.ctr.data.sequences import make_sequences
from rowmill.ctr.ranked_task import check_ranked_clicks
from rowmill.ctr.settings import GenerateConfig, SequencesConfig
from rowmill.distributed._checkpoint.manifest import Manifest
from tools.locked import locked_folder, with_folder

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=4_001, seed=3, rows_per_table=500)
TRAIN_ROWS = 3_201
"""Fifty batches of 64 and one of 1, in which all ranks but the last have no rows."""


def arguments(log: Path, out: Path, *more: str) -> list[str]:
    settings = {
        "--data": log,
        "--out": out,
        "--memory": "64MiB",
        "--batch": 64,
        "--log-every": 5,
        "--checkpoint-every": 10,
        "--train-rows": TRAIN_ROWS,
        "--threads": 1,
    }
    flags = [str(part) for setting in settings.items() for part in setting]
    return ["train", *flags, *more]


def run(server: ForkServerContext, count: int, log: Path, out: Path, *more: str) -> list[str]:
    """Wait until all ranks have succeeded; returns the output of each."""
    return run_ranks(server, count, arguments(log, out, *more), out)


def start_any(
    server: ForkServerContext, count: int, log: Path, out: Path, *more: str
) -> tuple[list[int], list[str]]:
    """Exit codes and output of a run of one process without torchrun, or of several ranks."""
    if count > 1:
        ranks = start(server, count, [arguments(log, out, *more)] * count, out)
        return [ended(rank) for rank in ranks], printed(out, count)
    out.mkdir(parents=True, exist_ok=True)
    code = ended(fork(server, arguments(log, out, *more), out / "printed"))
    return [code], [(out / "printed").read_text()]


def run_any(server: ForkServerContext, count: int, log: Path, out: Path, *more: str) -> None:
    codes, said = start_any(server, count, log, out, *more)
    assert codes == [0] * count, said


def files(out: Path) -> dict[Path, bytes]:
    found = (file for file in out.rglob("*") if file.is_file())
    return {
        file: file.read_bytes()
        for file in found
        if file.name != "LOCK" and not file.name.startswith("printed")
    }


def measured(out: Path) -> dict[str, Any]:
    report = json.loads((out / "report.json").read_text())
    curve = [(point["step"], point["rows"], point["logloss"]) for point in report["curve"]]
    names = ("steps", "live_rows", "train_rows", "test_rows")
    return {
        "curve": curve,
        "test": report["test"],
        "run": {name: report["run"][name] for name in names},
    }


def alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Check that two runs have the same steps, except for the order of sums."""
    assert one["run"] == other["run"]
    assert [point[:2] for point in one["curve"]] == [point[:2] for point in other["curve"]]
    losses = [point[2] for point in other["curve"]]
    assert [point[2] for point in one["curve"]] == pytest.approx(losses, rel=1e-5)
    assert one["test"] == pytest.approx(other["test"], rel=1e-4)


@pytest.fixture(scope="module")
def alone(log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run of one process."""
    out = tmp_path_factory.mktemp("alone")
    assert ended(fork(server, arguments(log, out), out / "printed")) == 0
    return out


@pytest.fixture(scope="module")
def two(log: Path, server: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run of two ranks."""
    out = tmp_path_factory.mktemp("two")
    run(server, 2, log, out)
    return out


def test_two_ranks_give_the_steps_of_one_process(alone: Path, two: Path) -> None:
    alike(measured(two), measured(alone))
    first, second = printed(two, 2)
    assert "test AUC" in first
    assert second == "", "only one rank prints"
    assert json.loads((two / "report.json").read_text())["run"]["ranks"] == 2


def test_three_ranks_with_steps_in_flight_give_the_steps_of_one_process(
    alone: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    """At bound 0 no row is read before its last update."""
    run(server, 3, log, tmp_path / "three", "--in-flight", "3")
    alike(measured(tmp_path / "three"), measured(alone))


def test_histories_and_candidate_lists_give_the_results_of_one_process(
    server: ForkServerContext, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    make_sequences(log, SequencesConfig(users=40, items=60, events=12, places=5, candidates=10))
    more = "--model", "two_tower", "--dim", "4"
    train = arguments(log, tmp_path / "alone", *more)
    at = train.index("--train-rows")
    del train[at : at + 2]
    assert ended(fork(server, train, tmp_path / "printed")) == 0
    ranked = [str(tmp_path / "two") if word == str(tmp_path / "alone") else word for word in train]
    codes = [ended(rank) for rank in start(server, 2, [ranked] * 2, tmp_path / "two")]
    assert codes == [0, 0], printed(tmp_path / "two", 2)
    alike(measured(tmp_path / "two"), measured(tmp_path / "alone"))
    assert "hr_at_10" in measured(tmp_path / "two")["test"]


def test_resume_refuses_another_dtype_of_rows_in_messages(
    two: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    out = tmp_path / "bf16"
    run(server, 2, log, out, "--rows-on-wire", "bf16")
    assert measured(out)["test"] != measured(two)["test"]
    assert measured(out)["test"]["logloss"] == pytest.approx(
        measured(two)["test"]["logloss"], rel=1e-2
    )
    ranks = start(server, 2, [arguments(log, out, "--resume")] * 2, out)
    assert [ended(rank) for rank in ranks] == [2, 2]
    assert "cannot resume: train.rows_on_wire was 'bf16' and is 'fp32'" in printed(out, 2)[0]


@pytest.mark.parametrize("placement", ["pooled", "whole", "replicated"])
def test_placements_give_the_same_steps_and_are_kept(
    placement: str, two: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    killed(server, log, tmp_path, "--placement", placement)
    run(server, 2, log, tmp_path, "--resume")
    alike(measured(tmp_path), measured(two))
    manifest = Manifest.load(tmp_path / "store")
    assert manifest is not None
    kept = {"whole": {"whole:0", "whole:1"}}.get(placement, {placement})
    assert set(manifest.placements.values()) == kept
    assert set(manifest.placements) == set(manifest.tables)


def test_tables_with_optimizers_of_their_own_give_the_same_steps(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    config = tmp_path / "tables.toml"
    # A rate of 0.3 for C2 multiplies differences of rounding to 1e-3 within the run.
    config.write_text(
        "[rows.tables.C1]\noptimizer = 'adam'\nlr = 0.01\n[rows.tables.C2]\nlr = 0.03\n"
        "[rows.tables.C3]\noptimizer = 'rowwise_adagrad'\n"
    )
    alone, three = tmp_path / "alone", tmp_path / "three"
    run_any(server, 1, log, alone, "--config", str(config))
    placement = "rows,C1=pooled,C2=whole,C3=replicated"
    run(server, 3, log, three, "--config", str(config), "--placement", placement)
    alike(measured(three), measured(alone))
    with rowmill.open(three / "store/parts-1/0", read_only=True) as store:
        first, second, third, rest = (store.open_table(f"C{n}").optimizer for n in range(1, 5))
    assert first == rowmill.optim.Adam(lr=0.01)
    assert second == rowmill.optim.Adagrad(lr=0.03)
    assert rest == rowmill.optim.Adagrad(lr=rest.lr)
    assert third == rowmill.optim.RowwiseAdagrad(lr=rest.lr)


@pytest.mark.parametrize(
    ("count", "placement", "message"),
    [
        (
            1,
            "pooled",
            "train.placement = 'pooled' needs many ranks: start the command with torchrun",
        ),
        (
            2,
            "split",
            "placement must be auto, rows, pooled, whole, whole:RANK or replicated, got 'split'",
        ),
        (2, "rows,no=pooled", "placement names table 'no', which does not exist: use one of"),
    ],
)
def test_an_invalid_placement_is_refused(
    log: Path, server: ForkServerContext, tmp_path: Path, count: int, placement: str, message: str
) -> None:
    codes, said = start_any(server, count, log, tmp_path, "--placement", placement)
    assert codes == [2] * count, said
    assert all(message in of_rank for of_rank in said), said


def killed(server: ForkServerContext, log: Path, out: Path, *more: str) -> str:
    """Start two ranks and kill the second after the second checkpoint; returns the output of the first."""
    return kill_second(server, arguments(log, out, *more), out)


def test_a_killed_rank_is_named_and_the_run_resumes_to_the_same_bits(
    two: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    said = killed(server, log, tmp_path)
    assert "rowmill: rank 1 was lost in step" in said
    assert "start all ranks again" in said
    first, _ = run(server, 2, log, tmp_path, "--resume")
    assert "Resuming at step" in first
    assert "Note" not in first
    assert measured(tmp_path) == measured(two)
    again, _ = run(server, 2, log, tmp_path, "--resume")
    assert "Nothing to do" in again


def test_a_run_resumes_with_another_number_of_ranks(
    alone: Path, log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    killed(server, log, tmp_path)
    first, *_ = run(server, 3, log, tmp_path, "--resume")
    assert "Warning: ranks was 2 and is 3, so results may differ in rounding" in first
    alike(measured(tmp_path), measured(alone))


def test_a_run_of_one_process_does_not_resume_with_ranks_or_the_reverse(
    alone: Path, two: Path, log: Path, server: ForkServerContext
) -> None:
    last = alone / "printed-last"
    assert ended(fork(server, arguments(log, two, "--resume"), last)) == 2
    assert (
        f"cannot resume: {two}/store was written by many ranks; start this command with torchrun"
        in last.read_text()
    )
    ranks = start(server, 2, [arguments(log, alone, "--resume")] * 2, alone)
    assert [ended(rank) for rank in ranks] == [2, 2]
    said = f"cannot resume: {alone}/store was written by one process; start this command without torchrun"
    assert all(said in text for text in printed(alone, 2))


def test_all_ranks_refuse_a_new_run_in_a_folder_with_a_checkpoint(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    few = "--train-rows", "200"
    for before, after in ((2, 1), (1, 2), (2, 2)):
        out = tmp_path / f"{before}-{after}"
        run_any(server, before, log, out, *few)
        kept = files(out)
        codes, said = start_any(server, after, log, out, *few)
        assert codes == [2] * after
        for text in said:
            assert f"{out}/store has the checkpoint of a run (task ctr, step 4 (200 rows)" in text
            assert "pass --resume to continue it, another --out for a new run, --continue" in text
        assert files(out) == kept


def test_a_new_run_clears_files_of_other_ranks_without_a_checkpoint(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    few = "--train-rows", "200"
    marks = {1: ["STORE", "MANIFEST"], 2: ["CHECKPOINT"]}
    for count in (2, 1, 2):
        run_any(server, count, log, tmp_path, *few)
        for name in marks[count]:
            (tmp_path / "store" / name).unlink()
    (tmp_path / "store" / "diary.txt").write_text("mine")
    ranks = start(server, 2, [arguments(log, tmp_path, *few)] * 2, tmp_path)
    assert [ended(rank) for rank in ranks] == [2, 2]
    assert "it holds diary.txt, which is not a file of a store" in printed(tmp_path, 2)[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dense-lr", "0.1"], "the settings, train.dense_lr: rank 0 has 0.002, rank 1 has 0.1"),
        (["--resume"], "the settings, train.resume: rank 0 has False, rank 1 has True"),
        (
            ["--checkpoint-every", "7"],
            "the settings, train.checkpoint_every: rank 0 has 10, rank 1 has 7",
        ),
    ],
    ids=str,
)
def test_ranks_with_different_settings_name_the_setting(
    log: Path, server: ForkServerContext, tmp_path: Path, more: list[str], message: str
) -> None:
    told = [arguments(log, tmp_path), arguments(log, tmp_path, *more)]
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [2, 2]
    for said in printed(tmp_path, 2):
        assert said == f"rowmill: ranks disagree on {message}; it must be equal on all ranks\n"


def test_all_ranks_report_a_backend_that_one_rank_lacks(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    told = [arguments(log, tmp_path), arguments(log, tmp_path, "--backend", "oneccl")]
    assert [ended(rank) for rank in start(server, 2, told, tmp_path)] == [1, 1]
    said = "rowmill: rank 1: oneCCL is not installed: pip install 'rowmill[oneccl]'\n"
    assert printed(tmp_path, 2) == [said, said]


def test_ranks_over_oneccl_give_the_same_steps(log: Path, two: Path, tmp_path: Path) -> None:
    """The exchange, prefetched batches, checkpoints of all ranks and the watch, with all messages over libccl."""
    packages = Path(__file__).parents[1] / "distributed/oneccl/packages.lock"
    ran = subprocess.run(
        [
            *(warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
            *("2", "-m", "rowmill", *arguments(log, tmp_path, "--backend", "oneccl")),
        ],
        env={**os.environ, "PYTHONPATH": with_folder(locked_folder("oneccl", packages))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    alike(measured(tmp_path), measured(two))


def test_torchrun_starts_the_ranks(log: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "rowmill", *arguments(log, tmp_path, "--train-rows", "640")),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("test AUC") == 1


VICTIM = """
import os, signal, sys
from rowmill.cli import main
from rowmill.ctr.task import Log
from rowmill.train.run import Trainer

step, opened = Trainer.train_step, Log.open
where, dies = os.environ["WHERE"], os.environ["RANK"] == os.environ["VICTIM"]

def train_step(trainer, *arguments):
    if where == "step" and trainer.state.step == 6 and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(trainer, *arguments)

def open_log(*arguments):
    if where == "log" and dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return opened(*arguments)

Trainer.train_step, Log.open = train_step, open_log
sys.exit(main())
"""
"""A program that runs the command, and kills one rank in its seventh step or when it reads the log."""


@pytest.mark.parametrize(
    ("victim", "where", "lost"),
    [
        (0, "step", "in step 7"),
        (1, "step", "in step 7"),
        (0, "log", "before its first step"),
        (1, "log", "before its first step"),
    ],
)
def test_under_torchrun_the_other_rank_names_a_killed_rank(
    log: Path, tmp_path: Path, victim: int, where: str, lost: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(VICTIM)
    command = [
        *(warm_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        # torchrun ends the other rank at once.
        *("--monitor-interval=0.001", str(program), *arguments(log, tmp_path / "run")),
    ]
    environment = {**os.environ, "VICTIM": str(victim), "WHERE": where}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode != 0
    said = [line for line in ran.stderr.splitlines() if line.startswith("rowmill:")]
    assert said == [
        f"rowmill: rank {victim} was lost {lost}: it ended without a message; start all ranks again, and they resume "
        "from their last checkpoint"
    ], ran.stderr


def test_a_store_is_needed_with_ranks() -> None:
    with pytest.raises(ConfigError, match=r"train\.plain does not work with many ranks: start"):
        check_ranked_clicks(load_config(None, {("train", "plain"): True}))
