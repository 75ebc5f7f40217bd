"""The command line: help, one-line errors with exit code 2, and the common flags of a run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rowmill
from rowmill.cli import main


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def test_the_package_is_the_command() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "rowmill", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"rowmill {rowmill.__version__}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rowmill {rowmill.__version__}\n"


def test_help_lists_the_common_flags_and_does_not_import_torch() -> None:
    program = (
        "import sys\nfrom rowmill.cli import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for flag in (
        "--data",
        "--train-rows",
        "--epochs",
        "--seed",
        "--memory",
        "--store",
        "--out",
        "--resume",
    ):
        assert flag in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "no data: pass a click log"),
        (["train", "--data", "nowhere.parquet"], "data nowhere.parquet does not exist"),
        (
            ["train", "--data", "x", "--batch", "0"],
            "train.batch must be an integer of at least 1, got '0'",
        ),
        (
            ["train", "--data", "x", "--model", "wide"],
            "model.kind must be one of dlrm",
        ),
        (
            ["train", "--data", "x", "--memory", "2 pounds"],
            "store.memory must be a number of bytes",
        ),
        (
            ["train", "--data", "x", "--row-dtype", "fp16"],
            "rows.dtype must be one of fp32, bf16, split-bf16, got 'fp16'",
        ),
        (["train", "--config", "nowhere.toml"], "config file nowhere.toml does not exist"),
        (["data", "generate", "--out", "x"], "generate.rows is not set"),
        (["inspect", "nowhere"], "nowhere"),
    ],
)
def test_invalid_input_gives_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rowmill: ")
    assert message in error
    assert error.count("\n") == 1


def test_an_invalid_column_gives_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"label": [0, 1], "I1": [1, 2]}), log)
    assert run("train", "--data", log, "--out", tmp_path / "out") == 2
    assert "has no column 'I2'" in capsys.readouterr().err


def test_more_train_rows_than_rows_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("data", "generate", "--out", tmp_path / "log", "--rows", "100", "--rows-per-table", "10")
    arguments = ["--data", tmp_path / "log", "--train-rows", "101", "--out", tmp_path / "out"]
    assert run("train", *arguments) == 2
    assert "data.train_rows must be from 1 to" in capsys.readouterr().err


def test_generate_prints_the_path_of_the_teacher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run("data", "generate", "--out", tmp_path, "--rows", "100", "--seed", "5", "--zipf", "1.1")
        == 0
    )
    assert "teacher.json" in capsys.readouterr().out
    settings = json.loads((tmp_path / "teacher.json").read_text())["settings"]
    assert (settings["rows"], settings["seed"], settings["zipf"]) == (100, 5, 1.1)


def test_train_writes_its_files_and_inspect_reads_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out, store = tmp_path / "log", tmp_path / "out", tmp_path / "rows"
    run("data", "generate", "--out", log, "--rows", "5000", "--rows-per-table", "200")
    arguments = ["--data", log, "--seed", "1", "--memory", "64MiB", "--store", store, "--out", out]
    arguments += ["--row-dtype", "bf16"]
    assert run("train", *arguments) == 0
    printed = capsys.readouterr().out
    for name in (
        "test AUC",
        "teacher",
        "hit rate",
        "stall share",
        "rows per second",
        "report.html",
    ):
        assert name in printed
    report = json.loads((out / "report.json").read_text())
    assert set(report["test"]) == {"auc", "logloss", "ne"}
    assert set(report["train"]) == {"rows_per_s", "stall_share", "hit_rate"}
    assert report["config"]["train"]["seed"] == 1
    assert report["machine"]["cores"] >= 1
    assert (report["run"]["train_rows"], report["run"]["test_rows"]) == (4000, 1000)
    assert (out / "report.html").stat().st_size > 5000
    assert list((out / "events").glob("events.out.tfevents.*"))

    assert run("train", *arguments) == 2
    assert "store has the checkpoint of a run (task ctr, step 16" in capsys.readouterr().err

    assert run("inspect", store) == 0
    shown = capsys.readouterr().out
    for text in ("C26", "bf16", "Adagrad", "healthy", "Hottest rows"):
        assert text in shown


def test_inspect_shows_counts_of_eviction_and_admission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = list(range(5000))
    for deleted in (3, 4):  # The second opening continues the counts of the first.
        with rowmill.open(tmp_path / "s", memory="16MiB") as store:
            table = store.table(
                "clicks",
                dim=2,
                optimizer=rowmill.optim.SGD(lr=1.0),
                eviction=rowmill.LeastFrequent(max_rows=1000),
            )
            store.table(
                "seen", dim=2, optimizer=rowmill.optim.SGD(lr=1.0), admission=rowmill.MinCount(2)
            )
            table.put(ids, np.ones((5000, 2), np.float32))
            table.delete(ids[:deleted])
            table.evict()
            store.checkpoint()
    assert run("inspect", tmp_path / "s") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    counts = next(line for line in lines if line[:1] == ["clicks"] and "LeastFrequent" in line)
    with rowmill.open(tmp_path / "s", memory="16MiB", read_only=True) as store:
        figures = store.stats()["tables"]["clicks"]
    assert (figures["deletes"], figures["rows"]) == (7, 1000)
    shown = [int(count.replace(",", "")) for count in counts[1:4]]
    assert shown == [figures["births"], figures["deletes"], figures["evicted"]]
    assert figures["births"] - figures["deletes"] - figures["evicted"] == figures["rows"]
    assert counts[4:] == ["LeastFrequent", "-"]
    assert ["seen", "0", "0", "0", "-", "MinCount"] in lines


@pytest.mark.parametrize(("share", "warned"), [(0.79, False), (0.8, True)])
def test_inspect_shows_row_places_and_warns_before_they_run_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    share: float,
    warned: bool,
) -> None:
    with rowmill.open(tmp_path / "s", memory="16MiB") as store:
        table = store.table("clicks", dim=2, optimizer=rowmill.optim.SGD(lr=1.0))
        table.put([1, 2], np.ones((2, 2), np.float32))
        store.checkpoint()
        stats = store.stats()
    places = stats["groups"][0]
    assert 0 < places["row_places_used"] < places["row_places"] <= 2**31
    assert places["row_places_share"] == places["row_places_used"] / places["row_places"]
    places.update(row_places_used=round(share * 2**31), row_places=2**31, row_places_share=share)
    monkeypatch.setattr(rowmill.Store, "stats", lambda _: stats)
    assert run("inspect", tmp_path / "s") == 0
    shown = capsys.readouterr().out
    line = next(line.split() for line in shown.splitlines() if f"{share:.1%}" in line)
    assert line == ["clicks", "0", f"{round(share * 2**31):,}", "2,147,483,648", f"{share:.1%}"]
    assert ("warning: group 0 (tables clicks) has used 80% of its row places" in shown) == warned
