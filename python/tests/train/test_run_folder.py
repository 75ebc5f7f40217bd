"""Folders of runs: one that holds a run is never overwritten, and runs without `--out` get folders of their own.

`out/latest` points to the latest run that was started without `--out`; `--resume` alone continues it.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from python.tests.train.kept import check_whole, contents
from python.tests.train.runs import ended, epoch, until
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.gnn.planted_nodes import make_nodes
from rowmill.gnn.settings import NodesConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext

LOG = GenerateConfig(rows=2_000, seed=3, rows_per_table=50)
FEW = ("--train-rows", "512")
"""Two steps."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail and change no file here; returns its line on standard error."""

    def run(*arguments: str, code: int = 2) -> str:
        before = contents(here)
        capsys.readouterr()
        assert main(arguments) == code
        assert contents(here) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def train(log: Path, *more: str) -> list[str]:
    return ["train", "--data", str(log), "--memory", "64MiB", "--threads", "1", *more]


def test_each_run_without_out_gets_a_folder_and_latest_points_to_the_last(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Path] = []
    for _ in range(3):
        assert main(train(log, *FEW)) == 0
        named = Path("out/latest").readlink()
        assert re.fullmatch(r"ctr-\d{8}-\d{6}(-\d+)?", str(named))
        runs.append("out" / named)
        said = capsys.readouterr().out
        assert f"The folder of this run is {runs[-1]}\n" in said
        assert f"{runs[-1]}/report.html" in said
        check_whole(runs[-1] / "store")
    assert len(set(runs)) == 3
    assert sorted(Path("out").iterdir()) == sorted([*runs, Path("out/latest")])
    report = json.loads((runs[0] / "report.json").read_text())
    assert report["config"]["train"]["out"] == str(runs[0])
    capsys.readouterr()
    assert main(train(log, *FEW, "--resume")) == 0
    said = capsys.readouterr().out
    assert "Nothing to do: the run is complete, at step 2" in said
    assert f"{runs[2]}/report.html" in said


def test_resume_alone_continues_the_latest_run(
    log: Path, server: ForkServerContext, here: Path
) -> None:
    flags = ("--batch", "16", "--checkpoint-every", "5", "--log-every", "5")
    assert main(train(log, *flags, "--out", "whole")) == 0
    process = server.Process(target=_in_folder, args=(here, train(log, *flags)))
    process.start()
    until(lambda: epoch(Path("out/latest/store")) >= 2, process.is_alive)
    process.kill()
    assert ended(process) == -signal.SIGKILL
    stopped = Path("out/latest").readlink()
    # A run with --out is no run of out/latest.
    assert main(train(log, *FEW, "--out", "out/other")) == 0
    assert main(train(log, *flags, "--resume")) == 0
    assert Path("out/latest").readlink() == stopped
    assert [path.name for path in Path("out").iterdir() if path.name.startswith("ctr")] == [
        str(stopped)
    ]
    assert _measured(Path("out") / stopped) == _measured(Path("whole"))


def _in_folder(folder: Path, arguments: list[str]) -> None:
    import os
    import sys

    os.chdir(folder)
    sys.exit(main(arguments))


def _measured(out: Path) -> dict[str, Any]:
    report = json.loads((out / "report.json").read_text())
    curve = [(point["step"], point["logloss"]) for point in report["curve"]]
    return {"test": report["test"], "curve": curve}


def test_resume_alone_without_a_run_begins_one(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(log, *FEW, "--resume")) == 0
    assert "No checkpoint to resume from: starting from the first row" in capsys.readouterr().out
    assert Path("out/latest/report.json").exists()


def test_a_command_that_fails_leaves_no_folder_and_latest_as_it_was(
    log: Path, refused: Callable[..., str]
) -> None:
    assert main(train(log, *FEW)) == 0
    before = Path("out/latest").readlink()
    for flags, said in [
        (("--data", "nowhere"), "data nowhere does not exist"),
        (("--row-memory", "1KiB"), "is too small"),
        (("--replace",), "train.replace needs the folder of the run to replace, --out"),
        (("--dim", "8", "--resume"), "cannot resume: model.dim was 16 and is 8"),
    ]:
        assert said in refused(*train(log, *FEW, *flags))
        check_whole(Path("out/latest/store"))
    assert Path("out/latest").readlink() == before
    assert len(list(Path("out").iterdir())) == 2


def test_a_new_run_that_cannot_begin_leaves_nothing_in_its_folders(
    log: Path, here: Path, refused: Callable[..., str]
) -> None:
    np.save("wide.npy", np.zeros((4, 99), np.float32))
    bad = ("--warm-start", "C1=wide.npy")
    for where in (
        ("--out", "run"),
        ("--out", "run", "--store", "rows"),
        ("--resume", "--out", "run"),
    ):
        assert "rows of table 'C1' have 16 weights" in refused(*train(log, *FEW, *where, *bad))
        assert sorted(path.name for path in here.iterdir()) == ["wide.npy"]
    # What was there before stays.
    Path("run").mkdir()
    Path("run/notes.txt").write_text("mine")
    Path("rows").mkdir()
    refused(*train(log, *FEW, "--out", "run", "--store", "rows", *bad))
    assert sorted(path.name for path in here.rglob("*")) == [
        "notes.txt",
        "rows",
        "run",
        "wide.npy",
    ]
    assert main(train(log, *FEW, "--out", "run", "--store", "rows")) == 0


def test_a_command_that_fails_keeps_the_log_that_it_has_generated() -> None:
    np.save("wide.npy", np.zeros((4, 99), np.float32))
    Path("settings.toml").write_text(
        '[data]\npath = "run/log"\n[generate]\nrows = 2000\nseed = 3\nrows_per_table = 50\n'
    )
    command = ["train", "--config", "settings.toml", "--out", "run", "--memory", "64MiB", *FEW]
    assert main([*command, "--warm-start", "C1=wide.npy"]) == 2
    assert [path.name for path in Path("run").iterdir()] == ["log"]
    written = Path("run/log/part-00000.parquet").stat().st_mtime_ns
    assert main(command) == 0
    assert Path("run/log/part-00000.parquet").stat().st_mtime_ns == written


def test_a_folder_of_runs_that_is_a_link_to_nothing_is_named(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").symlink_to("absent")
    assert main(train(log, *FEW)) == 2
    assert "out is a file, or a link to a folder that does not exist" in capsys.readouterr().err


def test_a_link_without_its_folder_and_a_folder_instead_of_the_link_are_named(
    log: Path, refused: Callable[..., str]
) -> None:
    assert main(train(log, *FEW)) == 0
    named = Path("out") / Path("out/latest").readlink()
    named.rename("kept")
    line = refused(*train(log, *FEW, "--resume"))
    assert f"cannot resume: out/latest points to {named}, which does not exist: pass" in line
    Path("out/latest").unlink()
    Path("kept").rename("out/latest")
    line = refused(*train(log, *FEW))
    assert "out/latest is not a link to the latest run: rename it, or pass" in line
    assert main(train(log, *FEW, "--resume")) == 0


def test_rows_elsewhere_belong_to_the_folder_of_the_run(
    log: Path, here: Path, refused: Callable[..., str]
) -> None:
    assert main(train(log, *FEW, "--out", "run", "--store", "rows")) == 0
    assert Path("run/store").readlink() == here / "rows"
    for folders in (["run"], ["run", "other"], ["new", "rows"]):
        flags = ["--out", folders[0], *(["--store", folders[1]] if folders[1:] else [])]
        named = "rows" if folders[0] == "new" else "run/store"
        line = refused(*train(log, *FEW, *flags))
        assert f"{named} has the checkpoint of a run (task ctr, step 2" in line
        assert f"another {'--store' if named == 'rows' else '--out'} for a new run" in line
        check_whole(Path("rows"))
    assert not Path("other").exists()
    line = refused(*train(log, *FEW, "--out", "run", "--store", "other", "--resume"))
    assert f"the run in run has its rows in {here / 'rows'}, and other has no checkpoint" in line
    # Both name the run.
    assert main(train(log, *FEW, "--out", "run", "--resume")) == 0
    assert main(train(log, *FEW, "--out", "run", "--store", "rows", "--resume")) == 0
    assert main(["predict", "run", "--data", str(log), "--out", "scores.parquet"]) == 0
    Path("rows").rename("moved")
    line = refused(*train(log, *FEW, "--out", "run", "--resume"))
    assert f"run/store points to {here / 'rows'}, which does not exist" in line
    assert main(train(log, *FEW, "--out", "run", "--store", "moved", "--resume")) == 0


def test_rows_of_an_unfinished_replacement_are_not_taken_for_missing(
    log: Path, refused: Callable[..., str]
) -> None:
    """`--replace` was killed, and the next command has another `--out`."""
    assert main(train(log, *FEW, "--out", "run", "--store", "rows")) == 0
    Path("rows").rename("rows.replaced")
    line = refused(*train(log, *FEW, "--out", "other", "--store", "rows"))
    assert (
        "--replace of a run with another --out moved the old rows of rows to rows.replaced" in line
    )


def test_the_example_of_make_runs_twice(
    log: Path, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """Its settings name `--out`, and its log is inside of it."""
    text = (Path(__file__).parents[3] / "examples/quickstart.toml").read_text()
    for name, value in (
        ("rows = 600_000", "rows = 600"),
        ("rows_per_table = 180_000", "rows_per_table = 50"),
    ):
        assert name in text
        text = text.replace(name, value)
    Path("quickstart.toml").write_text(text)
    command = ["train", "--config", "quickstart.toml", "--replace"]
    assert main(command) == 0
    logged = contents(Path("out/quickstart/log"))
    assert main(command) == 0
    assert contents(Path("out/quickstart/log")) == logged
    assert [path.name for path in Path("out").iterdir()] == ["quickstart"]


def test_runs_of_splits_are_kept_and_replaced_as_one(
    refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    make_nodes(Path("nodes.npz"), NodesConfig(nodes=300, classes=3))
    task = ["train", "--task", "gnn", "--data", "nodes.npz", "--epochs", "1", "--threads", "1"]
    task += ["--memory", "64MiB", "--out", "run", "--splits", "2"]
    assert main(task) == 0
    Path("run/notes.txt").write_text("mine")
    for split in ("0", "2"):
        line = refused(*task, "--split", split)
        assert "run/split-0/store has the checkpoint of a run (task gnn, step " in line
        check_whole(Path("run/split-0/store"))
        check_whole(Path("run/split-1/store"))
    assert main([*task, "--split", "2", "--replace"]) == 0
    assert sorted(path.name for path in Path("run").iterdir()) == [
        "notes.txt",
        "split-2",
        "split-3",
        "splits.json",
    ]
    assert not Path("run.replaced").exists()
    shutil.rmtree("run")
    assert main([*task[:-4], "--splits", "2"]) == 0
    assert Path("out/latest/splits.json").exists()


def test_names_of_a_graph_are_replaced_with_its_run() -> None:
    Path("graph").mkdir()
    for name in ("train", "valid", "test"):
        Path(f"graph/{name}.tsv").write_text("a\tlikes\tb\nb\tlikes\ta\n")
    task = ["train", "--task", "kge", "--data", "graph", "--epochs", "1", "--threads", "1"]
    task += ["--memory", "64MiB", "--out", "run"]
    assert main(task) == 0
    Path("run/entities.txt").write_text("of the old run\n")
    assert main([*task, "--replace"]) == 0
    assert Path("run/entities.txt").read_text() == "a\nb\n"
    assert not Path("run.replaced").exists()
