"""`--resume` in unusual folders: a complete run, an incomplete report, other settings, old folders.

A kill at some point can leave each of these folders. Each must lead to the results of the run that the settings describe, or
to one line with the reason. `test_exactly_once.py` compares the results themselves.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from python.tests.train.cut_off import cut_off
from python.tests.train.runs import scalars
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.train.run import Trainer
from rowmill.train.state import Run, RunState

if TYPE_CHECKING:
    from collections.abc import Callable


LOG = GenerateConfig(rows=1500, seed=5, rows_per_table=100)


@pytest.fixture
def command(
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """A function that runs `rowmill train` in an empty folder and returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*more: str, code: int = 0) -> str:
        capsys.readouterr()
        settings = ["--batch", "100", "--threads", "1", "--log-every", "2", "--memory", "64MiB"]
        steps = ["--checkpoint-every", "4"]
        ended = main(["train", "--data", str(log), "--out", "out", *settings, *steps, *more])
        printed = capsys.readouterr()
        assert ended == code, printed.err
        return printed.out + printed.err

    return run


def report() -> dict[str, Any]:
    return json.loads(Path("out/report.json").read_text())


def shown(tag: str) -> list[tuple[int, float]]:
    """Step and value of the points that TensorBoard shows."""
    return scalars(Path("out/events"), tag)[tag]


def test_resuming_a_complete_run_changes_nothing(command: Callable[..., str]) -> None:
    command()

    def left() -> dict[Path, bytes]:
        paths = [
            Path("out/store/MANIFEST"),
            *Path("out").glob("*.*"),
            *Path("out/events").iterdir(),
        ]
        return {path: path.read_bytes() for path in paths}

    before = left()
    printed = command("--resume")
    assert "Nothing to do: the run is complete, at step 12" in printed
    assert f"test AUC            {report()['test']['auc']:.4f}" in printed
    assert left() == before


def test_an_incomplete_report_is_written_again(command: Callable[..., str]) -> None:
    command()
    first = report()
    # report.json is the last file of a report.
    Path("out/report.json").rename("out/.report.json")
    Path("out/report.html").write_text("<!doctype html><ht")
    assert "is complete, at step 12: writing the missing report" in command("--resume")
    assert [report()[part] for part in ("test", "train", "curve")] == [
        first[part] for part in ("test", "train", "curve")
    ]
    assert report()["run"]["lookups"] == first["run"]["lookups"]
    assert Path("out/report.html").read_text().endswith("</html>\n")
    for name, value in first["test"].items():
        assert shown(f"test/{name}") == [(12, pytest.approx(value))]


def test_a_new_run_removes_the_report_of_an_earlier_run(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command("--seed", "1")
    shutil.rmtree("out/store")
    with cut_off(10, monkeypatch):
        command()
    assert list(Path("out").glob("report.*")) == []


def test_tensorboard_shows_every_step_once(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command()
    whole = {tag: shown(tag) for tag in ("train/logloss", "train/auc", "test/auc")}
    # A new run removes the points of the run before it in the folder. A resumed run removes the points after its checkpoint
    # at step 4 or 8.
    for step in (7, 11):
        shutil.rmtree("out/store")
        with cut_off(step, monkeypatch):
            command()
        assert shown("train/logloss")[-1][0] == step - 1
        command("--resume")
        assert {tag: shown(tag) for tag in whole} == whole


def test_points_are_flushed_before_a_checkpoint(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(owner: type[Any], name: str) -> None:
        original = getattr(owner, name)

        def noted(*arguments: Any) -> None:
            calls.append(name)
            original(*arguments)

        monkeypatch.setattr(owner, name, noted)

    note(SummaryWriter, "add_scalar")
    note(SummaryWriter, "flush")
    note(Trainer, "save")
    command()
    before = {calls[number - 1] for number, name in enumerate(calls) if name == "save"}
    assert calls.count("save") == 5
    assert calls.count("add_scalar") > 20
    assert before == {"flush", "save"}, "the last checkpoint, after the test, has no new point"


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Files with their modification times, without the lock, which records the last opening."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "LOCK")
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


@pytest.mark.parametrize("flags", [(), ("--plain",), ("--store", "rows")], ids=str)
def test_a_new_run_is_refused_in_a_folder_with_a_checkpoint(
    command: Callable[..., str], flags: tuple[str, ...]
) -> None:
    command()
    before = contents(Path())
    says = command(*flags, code=2)
    assert "out/store has the checkpoint of a run (task ctr, step 12 (1,200 rows)" in says
    assert "pass --resume to continue it, another --out" in says
    assert contents(Path()) == before
    assert "Nothing to do" in command("--resume")
    command("--out", "other")


def test_a_new_run_is_refused_if_its_store_has_a_checkpoint(
    command: Callable[..., str],
) -> None:
    command("--store", "rows")
    before = contents(Path())
    says = command("--store", "rows", "--out", "other", code=2)
    assert "rows has the checkpoint of a run (task ctr, step 12 (1,200 rows)" in says
    assert "another --store for a new run" in says
    assert contents(Path()) == before
    assert "Nothing to do" in command("--store", "rows", "--resume")


@pytest.mark.parametrize("more", [(), ("--feed", "64MiB")])
def test_a_new_run_clears_files_of_a_run_without_a_checkpoint(
    more: tuple[str, ...], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command(*more)
    first = report()["test"]
    for name in ("STORE", "MANIFEST"):  # Files that a store gets with its first checkpoint.
        (Path("out/store") / name).unlink()

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        command(*more, code=130)
    # A run that is killed while it clears leaves a folder that the next run clears.
    assert "Nothing to do" not in command(*more)
    assert report()["test"] == first


def test_a_complete_run_continues_with_more_epochs(command: Callable[..., str]) -> None:
    Path("constant.toml").write_text("[train]\ndense_decay_from = 1\n")
    constant = ("--config", "constant.toml")
    command(*constant, "--epochs", "2")
    both = report()
    shutil.rmtree("out")
    command(*constant, "--epochs", "1")
    assert "Resuming at step 12" in command(*constant, "--epochs", "2", "--resume")
    assert report()["test"] == both["test"]
    assert [point["logloss"] for point in report()["curve"]] == [
        point["logloss"] for point in both["curve"]
    ]


def test_memory_lookahead_and_checkpoints_may_change_on_resume(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command()
    whole = report()
    shutil.rmtree("out")
    with cut_off(6, monkeypatch):
        command("--row-memory", "192KiB")
    other = ["--memory", "32MiB", "--row-memory", "256KiB", "--lookahead", "0"]
    assert "Note" not in command("--resume", *other, "--checkpoint-every", "3")
    assert report()["run"]["evictions"] > 0
    assert report()["test"] == whole["test"]
    points = {point["step"] for point in report()["curve"]}
    assert points - {point["step"] for point in whole["curve"]} == {9}


def test_changed_conditions_that_affect_bits_are_reported(
    command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_off(6, monkeypatch):
        command()
    assert "Warning: threads was 1 and is 2, so results may differ in rounding" in command(
        "--resume", "--threads", "2"
    )
    shutil.rmtree("out")
    with cut_off(6, monkeypatch):
        command()
    assert "Note" not in command("--resume")


def test_resume_refuses_other_column_names(command: Callable[..., str]) -> None:
    """They would create other tables, and the rows of the first tables would be lost silently."""
    Path("clicks.tsv").write_text("".join(f"{n % 2}\t{n}\t{n % 7:x}\n" for n in range(500)))
    for name, user in (("one", "user"), ("two", "visitor")):
        Path(f"{name}.toml").write_text(
            f'label = "y"\ndense = ["n"]\nids = ["{user}"]\ncolumns = ["y", "n", "{user}"]\n'
        )
    data = ("--data", "clicks.tsv", "--schema")
    command(*data, "one.toml")
    printed = command(*data, "two.toml", "--resume", code=2)
    assert "cannot resume: columns was ['y', 'n', 'user'] and is ['y', 'n', 'visitor']" in printed


def test_a_saved_state_restores_everything() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    about: dict[str, Any] = {"identity": {"seed": 1}, "conditions": {"threads": 1}}

    def step() -> list[torch.Tensor]:
        optimizer.zero_grad()
        model(torch.rand(4, 3)).square().sum().backward()
        optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    step()
    state = RunState(step=1, counts={"lookups": 7}, curve=[{"auc": None, "logloss": 0.1}])
    packed = Run(model, optimizer, **about, state=state).pack()
    expected = step()
    step()
    again = Run(model, optimizer, **about)
    assert again.unpack(packed) == []
    assert again.state == state
    assert all(map(torch.equal, step(), expected)), (
        "weights, buffers, optimizer or random stream differ"
    )
    moved = Run(model, optimizer, identity={"seed": 1}, conditions={"threads": 2})
    assert moved.unpack(packed) == ["threads was 1 and is 2"]


def test_a_run_only_uses_random_streams_that_checkpoints_hold(
    command: Callable[..., str],
) -> None:
    before = random.getstate(), str(np.random.get_state())
    command()
    assert (random.getstate(), str(np.random.get_state())) == before
