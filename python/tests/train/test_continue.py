"""`rowmill train --continue`: what it begins, what it refuses, and what it leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rowmill
from python.tests.train.cut_off import cut_off
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import split
from python.tests.train.runs import scalars
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.train.saved_files import saved_file
from rowmill.train.state import ATTACHMENT, RunState, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = GenerateConfig(rows=6_000, seed=3, rows_per_table=100)
FLAGS = ("--memory", "64MiB", "--threads", "1", "--batch", "100", "--log-every", "3")


@pytest.fixture
def days(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three files of 1,250 rows, of which 1,000 are trained on: 10 steps."""
    monkeypatch.chdir(tmp_path)
    files = split(log, tmp_path / "days", [1_250] * 3)
    return [str(file.relative_to(tmp_path)) for file in files]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs `rowmill train`, and returns its output."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(["train", *arguments])
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out + printed.err

    return run


@pytest.fixture
def begun(days: list[str], command: Callable[..., str]) -> str:
    """A run that was trained on the first day, whose file is gone."""
    command("--data", days[0], "--out", "run", *FLAGS)
    Path(days[0]).rename("day-0.parquet")
    return "run"


@pytest.fixture
def refused(begun: str, command: Callable[..., str]) -> Callable[..., str]:
    """A command that must fail and leave the run as it is."""

    def run(*arguments: str) -> str:
        before = contents(Path(begun))
        printed = command(*arguments, code=2)
        assert contents(Path(begun)) == before
        check_whole(Path(begun, "store"))
        (line,) = printed.splitlines()
        return line

    return run


def report() -> dict[str, Any]:
    return json.loads(Path("run/report.json").read_text())


def test_a_run_goes_on_with_new_data_its_settings_and_its_curves(
    begun: str, days: list[str], command: Callable[..., str]
) -> None:
    first = report()
    said = command("--continue", begun, "--data", days[1])
    assert "Beginning at step 10, row 1,000 of part 2, days/part-001.parquet" in said
    second = report()
    assert second["curve"][: len(first["curve"])] == first["curve"]
    assert [point["rows"] for point in second["curve"]][-1] == 2_000
    assert second["test"] != first["test"]
    (part,) = second["parts"]
    assert (part["data"], part["rows"], part["steps"], part["examples"]) == (
        days[0],
        1_250,
        10,
        1_000,
    )
    assert part["test"] == first["test"]
    assert second["config"]["train"]["batch"] == 100
    assert second["run"] | {"train_rows": 1_000, "test_rows": 250, "steps": 20} == second["run"]
    assert "days/part-000.parquet" in Path("run/report.html").read_text()
    # Tests of both parts are among the events.
    test_auc = scalars(Path("run/events"), "test/auc")["test/auc"]
    expected = [(10, first["test"]["auc"]), (20, second["test"]["auc"])]
    assert test_auc == [(step, pytest.approx(auc)) for step, auc in expected]


def test_data_that_a_run_was_trained_on_is_not_trained_on_again(
    begun: str, days: list[str], command: Callable[..., str]
) -> None:
    assert "Nothing to do: the run is complete, at step 10" in command(
        "--continue", begun, "--data", "day-0.parquet"
    )
    command("--continue", begun, "--data", days[1])
    before = contents(Path("run"))
    again = command("--continue", begun, "--data", days[1])
    assert "Nothing to do: the run is complete, at step 20" in again
    earlier = command("--continue", begun, "--data", "day-0.parquet")
    assert (
        "Nothing to do: day-0.parquet is part 1 of the data that this run was trained on" in earlier
    )
    assert contents(Path("run")) == before


def test_the_same_command_goes_on_after_a_kill(
    begun: str, days: list[str], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree("run", "killed")
    command("--continue", begun, "--data", days[1], "--row-lr", "0.1")
    whole = report()
    same = ("--continue", "killed", "--data", days[1], "--row-lr", "0.1")
    for step in (11, 16):
        with cut_off(step, monkeypatch):
            command(*same, "--checkpoint-every", "3")
        # The report of the part before stays until a checkpoint of this one.
        assert Path("killed/report.json").exists() == (step == 11)
    assert "Resuming at step 15, row 1,500 of part 2" in command(*same)
    after = json.loads(Path("killed/report.json").read_text())
    assert after["test"] == whole["test"]
    points = {point["step"]: point["logloss"] for point in after["curve"]}
    assert {**points, **{point["step"]: point["logloss"] for point in whole["curve"]}} == points
    check_whole(Path("killed/store"))


def test_rates_may_change_between_parts_and_decay_in_each(
    days: list[str], command: Callable[..., str]
) -> None:
    Path("decay.toml").write_text("[train]\ndense_decay_from = 0\n")

    def last_rate() -> float:
        with rowmill.open("run/store", read_only=True) as store:
            packed = store.attachment(ATTACHMENT)
        assert packed is not None
        return unpacked(packed)["optimizer"]["param_groups"][0]["lr"]

    command("--data", days[0], "--out", "run", "--config", "decay.toml", *FLAGS)
    assert last_rate() == pytest.approx(2e-3 / 10)
    command("--continue", "run", "--data", days[1], "--dense-lr", "0.5", "--batch", "50")
    assert last_rate() == pytest.approx(0.5 / 20)
    # They are the settings of the next part, too.
    command("--continue", "run", "--data", days[2])
    assert report()["config"]["train"]["batch"] == 50


def test_structure_and_the_rates_of_a_begun_part_are_fixed(
    refused: Callable[..., str],
    command: Callable[..., str],
    days: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = ("--continue", "run", "--data", days[1])
    for flags, says in [
        (("--dim", "8"), "model.dim was 16 and is 8, which is fixed for all data of a run"),
        (("--row-optimizer", "sgd"), "rows.optimizer was 'adagrad' and is 'sgd'"),
        (("--seed", "4"), "train.seed was 0 and is 4"),
        (("--task", "kge"), "model.kind must be transe or rotate or distmult or complex"),
        (("--out", "other"), "--continue run already names the run to continue: drop --out"),
        (("--resume",), "drop --resume"),
        (("--replace",), "drop --replace"),
        (("--store", "other"), "drop --store"),
        (("--plain",), "drop --plain"),
    ]:
        assert says in refused(*new, *flags), flags
    with cut_off(14, monkeypatch):
        command(*new, "--checkpoint-every", "2")
    says = refused(*new, "--row-lr", "0.5")
    assert (
        "cannot continue: rows.lr was 0.02 and is 0.5, and days/part-001.parquet is already a part"
        in says
    )
    says = refused("--continue", "run", "--data", days[2])
    assert (
        "this run has not finished part 2 of its data, days/part-001.parquet, and is at step 14"
        in says
    )
    says = refused("--data", days[2], "--out", "run", "--resume", *FLAGS)
    assert "cannot resume: days/part-002.parquet is not the last data of this run" in says
    assert "Resuming at step 14" in command("--data", days[1], "--out", "run", "--resume", *FLAGS)


def test_data_that_cannot_be_the_next_is_refused(
    refused: Callable[..., str], days: list[str], log: Path
) -> None:
    says = refused("--continue", "run", "--data", str(log))
    assert (
        f"{log} (6,000 rows) begins with the rows of part 1 of this run, days/part-000.parquet"
        in says
    )
    assert "days/none does not exist" in refused("--continue", "run", "--data", "days/none")
    assert "days has no checkpoint of a run" in refused("--continue", "days", "--data", days[1])
    assert "no data: pass a click log" in refused("--continue", "run")
    Path("schema.toml").write_text('label = "clicked"\ndense = ["I1"]\nids = ["C1", "C2"]\n')
    says = refused("--continue", "run", "--data", days[1], "--schema", "schema.toml")
    assert "cannot continue: labels of the log was ['label'] and is ['clicked']" in says


def test_a_new_run_offers_to_continue(refused: Callable[..., str], days: list[str]) -> None:
    says = refused("--data", days[1], "--out", "run")
    assert "--continue run to train it on new data" in says


def test_states_of_older_checkpoints_have_no_parts() -> None:
    old = {
        name: value
        for name, value in vars(RunState(step=3)).items()
        if name not in ("data", "parts")
    }
    state = RunState.from_json(json.dumps(old))
    assert (state.step, state.data, state.parts) == (3, "", [])
    assert RunState.from_json(state.as_json()) == state


def test_the_dense_optimizer_goes_on(
    begun: str, days: list[str], command: Callable[..., str]
) -> None:
    command("--continue", begun, "--data", days[1])
    with rowmill.open("run/store", read_only=True) as store:
        packed = store.attachment(ATTACHMENT)
    assert packed is not None
    steps = unpacked(packed)["optimizer"]["state"][0]["step"]
    assert torch.equal(steps, torch.tensor(20.0))


def test_a_vocabulary_grows_at_its_end(days: list[str], command: Callable[..., str]) -> None:
    command("--data", days[0], "--out", "run", "--ids", "vocabulary", "--min-count", "9", *FLAGS)
    before: list[list[int]] = saved_file(Path("run"), "vocabulary")
    command("--continue", "run", "--data", days[1])
    after: list[list[int]] = saved_file(Path("run"), "vocabulary")
    assert all(new[: len(old)] == old for old, new in zip(before, after, strict=True))
    assert all(len(set(new)) == len(new) for new in after)
    grown = {f"C{n}": len(new) + 2 for n, new in enumerate(after, 1)}
    assert sum(map(len, after)) > sum(map(len, before)) + 26
    with rowmill.open("run/store", read_only=True) as store:
        assert {name: store.open_table(name).num_rows for name in grown} == grown
        # A new value has a row that was trained.
        trained = store.open_table("C1")
        last = torch.tensor([grown["C1"] - 1])
        assert trained.contains(last).all()
    check_whole(Path("run/store"))
    again = command("--continue", "run", "--data", days[1])
    assert "Nothing to do: the run is complete" in again
    resumed = ("--data", days[1], "--out", "run", "--ids", "vocabulary", "--min-count", "9")
    assert "Nothing to do: the run is complete" in command(*resumed, "--resume", *FLAGS)
    assert main(["predict", "run", "--data", days[2], "--out", "scores.parquet"]) == 0


def test_eviction_and_admission_may_change(
    days: list[str], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rules in {
        "first": '[eviction]\nrule = "ttl"\nsteps = 5\nevery = 4',
        "second": '[eviction]\nrule = "least_frequent"\nmax_rows = 30\nevery = 4\n[admission]\nmin_count = 2',
        "third": '[eviction]\nrule = "none"\n[admission]\nmin_count = 2',
    }.items():
        Path(f"{name}.toml").write_text(rules)
    command("--data", days[0], "--out", "run", "--config", "first.toml", *FLAGS)
    second = ("--continue", "run", "--data", days[1], "--config", "second.toml")
    with cut_off(11, monkeypatch):
        command(*second, "--checkpoint-every", "100")
    # Before the first checkpoint of the new part, the tables are as they were.
    with rowmill.open("run/store", read_only=True) as store:
        assert store.open_table("C1").eviction == rowmill.TTL(steps=5, every=4)
    command(*second)
    with rowmill.open("run/store", read_only=True) as store:
        for name in store.table_names():
            table = store.open_table(name)
            assert table.eviction == rowmill.LeastFrequent(max_rows=30, every=4)
            assert table.admission == rowmill.MinCount(2, bytes=1 << 20)
            assert len(table) < 100
    before = contents(Path("run"))
    says = command("--continue", "run", "--data", days[2], "--config", "third.toml", code=2)
    assert "eviction" in says
    assert contents(Path("run")) == before
    check_whole(Path("run/store"))
