"""Invalid command lines: each mistake gives one line that names the setting or file, and no data is destroyed.

A traceback is a defect. So is clearing a folder that another program owns, or resuming from files of another run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rowmill
from rowmill.cli import main
from rowmill.ctr.data import MISSING_ID
from rowmill.ctr.data.generate import generate
from rowmill.ctr.settings import GenerateConfig
from rowmill.optim import SGD

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two logs with equal settings and different rows."""
    folder = tmp_path_factory.mktemp("logs")
    for seed in (0, 1):
        generate(folder / f"log{seed}", GenerateConfig(rows=600, seed=seed, rows_per_table=50))
    return folder


@pytest.fixture
def here(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the logs, a file, and a folder with other work."""
    for name in ("log0", "log1"):
        shutil.copytree(logs / name, tmp_path / name)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/thesis.tex").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, code: int = 2) -> str:
        capsys.readouterr()
        try:
            ended = main(arguments)
        except SystemExit as usage:
            ended = usage.code
        error = capsys.readouterr().err
        assert ended == code, error
        assert "Traceback" not in error
        last = error.splitlines()[-1]
        assert last.startswith("rowmill")
        assert len(error.splitlines()) == 1 or error.startswith("usage:")
        return last

    return run


def train(*more: str, data: str = "log0", out: str = "out") -> list[str]:
    return ["train", "--data", data, "--out", out, "--memory", "64MiB", *more]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["--batch"], "argument --batch: expected one argument"),
        (["--memory", "12XB"], "store.memory must be a number of bytes or a size such as"),
        (["--memory", "-5"], "store.memory must be a number of bytes or a size such as"),
        (["--memory", "1MiB"], "memory must be at least 16777216 bytes (16 MiB), got 1048576"),
        (["--memory", "9" * 30], "store.memory must be less than 8388608TiB"),
        (["--row-memory", "1KiB"], "is too small"),
        (["--row-memory", "1GiB"], "row_memory must be at most memory (67108864 bytes)"),
        (["--batch", "-1"], "train.batch must be an integer of at least 1, got '-1'"),
        (["--batch", "1e3"], "train.batch must be an integer of at least 1, got '1e3'"),
        (["--seed", str(1 << 64)], "18446744073709551615, got '18446744073709551616'"),
        (
            ["--threads", "9" * 20],
            "train.threads must be an integer of at least 1 and at most 256, got",
        ),
        (["--dim", "9" * 20], "model.dim must be an integer of at least 1 and at most 65536, got"),
        (
            ["--dense-lr", "1e300"],
            "train.dense_lr must be a number of at least 0 and at most 3e+38, got '1e300'",
        ),
        (["--ids", "hash", "--buckets", "9" * 20], "at most 2147483647"),
        (
            ["--staleness-bound", "256"],
            "store.staleness_bound must be an integer of at least 0 and at most 255, got '256'",
        ),
        (
            ["--train-rows", "601"],
            "data.train_rows must be from 1 to the number of rows of log0, 600, got 601",
        ),
        (["--out", ""], "train.out is empty"),
        (["--data", ""], "data.path is empty"),
        (["--store", ""], "store.path is empty"),
        (["--out", "file"], "train.out = 'file' cannot be created as a folder (File exists)"),
        (
            ["--out", "file/out"],
            "train.out = 'file/out' cannot be created as a folder (Not a directory)",
        ),
        (
            ["--store", "file"],
            "store file is a file, but a store is a folder: pass another --store",
        ),
        (["--store", "work"], "store work is not empty: pass --resume"),
        (
            ["--store", "work", "--resume"],
            "cannot resume: work is not a store (it holds thesis.tex)",
        ),
        (["--plain", "--resume"], "train.resume needs a store"),
        (["--config", "work"], "config file work cannot be read: Is a directory"),
        (["--schema", "work"], "schema file work cannot be read: Is a directory"),
        (["--data", "work"], "work holds no *.parquet and no *.tsv"),
        (["--data", "nowhere"], "data nowhere does not exist"),
        (["--data", "nowhere", "--model", "din"], "data nowhere does not exist"),
        (["--data", "/dev/null"], "data /dev/null is a pipe or a device"),
    ],
)
def test_invalid_flags_of_train_are_named(
    here: Path, refused: Callable[..., str], flags: list[str], says: str
) -> None:
    assert says in refused(*train(*flags))
    assert (here / "work/thesis.tex").read_text() == (here / "file").read_text() == "mine"


def test_a_parquet_with_a_missing_label_names_file_row_and_fix(
    here: Path, refused: Callable[..., str]
) -> None:
    table = pq.read_table("log0/part-00000.parquet")
    labels = table["label"].to_pylist()
    labels[7] = None
    pq.write_table(table.set_column(0, "label", pa.array(labels, pa.int8())), "nulls.parquet")
    says = refused(*train(data="nulls.parquet"))
    assert "nulls.parquet, row 7 (from 0): label 'label' is missing: drop the row" in says


def test_a_tsv_row_with_twelve_integers_names_file_line_and_fix(
    here: Path, refused: Callable[..., str]
) -> None:
    rows = ["\t".join(["1", *["3"] * integers, *["ab"] * 26]) for integers in (13, 13, 12)]
    Path("clicks.tsv").write_text("\n".join(rows) + "\n")
    says = refused(*train(data="clicks.tsv"))
    assert "clicks.tsv, line 3: 39 fields, expected 40" in says
    assert "leave a field empty if its value is missing" in says


def test_training_that_diverges_says_when_and_what_to_lower(
    here: Path, refused: Callable[..., str]
) -> None:
    for flag in ("--dense-lr", "--row-lr"):
        says = refused(*train(flag, "1e30"), code=1)
        assert "training diverged at step 2: the loss is" in says
        assert f"{flag} (now 1e+30)" in says


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--dim", "8"], "cannot resume: model.dim was 16 and is 8"),
        (["--seed", "3"], "cannot resume: train.seed was 0 and is 3"),
        (["--model", "ffnn"], "cannot resume: model.kind was 'dlrm' and is 'ffnn'"),
        (["--row-optimizer", "adam"], "cannot resume: rows.optimizer was 'adagrad' and is 'adam'"),
        (["--data", "log1"], "cannot resume: checksum of the first rows was"),
        (["--train-rows", "100"], "cannot resume: train rows was 480 and is 100"),
    ],
)
def test_resume_with_other_settings_is_refused_and_names_the_setting(
    here: Path, refused: Callable[..., str], flags: list[str], says: str
) -> None:
    assert main(train()) == 0
    before = sorted(path.read_bytes() for path in Path("out/store").glob("[!L]*"))
    assert says in refused(*train("--resume", *flags))
    manifest = Path("out/store/MANIFEST").read_bytes()
    assert manifest in before, "the checkpoint of the first run is still there"
    assert main(train("--resume")) == 0


def test_a_parameter_of_another_optimizer_is_named_and_existing_rows_stay(
    here: Path, refused: Callable[..., str]
) -> None:
    assert main(train()) == 0
    manifest = Path("out/store/MANIFEST").read_bytes()
    Path("run.toml").write_text("[rows]\nl1 = 0.1\n")
    says = refused(*train("--config", "run.toml"))
    assert "rows.l1 = 0.1, but adagrad takes lr, eps, initial_accumulator: drop rows.l1" in says
    assert Path("out/store/MANIFEST").read_bytes() == manifest


def test_plain_rows_refuse_optimizers_that_torch_lacks(
    here: Path, refused: Callable[..., str]
) -> None:
    for kind in ("momentum_sgd", "rowwise_adagrad", "rowwise_adam", "ftrl"):
        says = refused(*train("--plain", "--row-optimizer", kind))
        assert f"rows.optimizer = '{kind}' does not work with --plain" in says


def test_a_store_without_a_run_is_neither_cleared_nor_resumed(
    here: Path, refused: Callable[..., str]
) -> None:
    with rowmill.open("out/store", memory="16MiB") as store:
        store.table("words", dim=1, optimizer=SGD(lr=1.0)).put([1], [[2.0]])
        store.checkpoint()
    for flags in ([], ["--resume"], ["--store", "out/store", "--resume"]):
        says = refused(*train(*flags))
        assert "store out/store has tables that `rowmill train` did not write" in says
    with rowmill.open("out/store", memory="16MiB") as store:
        assert store.open_table("words").get([1]).tolist() == [[2.0]]


def test_a_folder_named_store_with_other_things_in_it_is_not_cleared(
    here: Path, refused: Callable[..., str]
) -> None:
    shutil.copytree("work", "out/store")
    assert "this run would clear out/store, but it holds thesis.tex" in refused(*train())
    assert Path("out/store/thesis.tex").read_text() == "mine"


def test_a_damaged_store_is_neither_resumed_nor_cleared(
    here: Path, refused: Callable[..., str]
) -> None:
    assert main(train()) == 0
    manifest = Path("out/store/MANIFEST")
    manifest.write_bytes(manifest.read_bytes()[:-100])
    says = refused(*train("--resume"), code=1)
    assert "MANIFEST" in says
    assert "damaged; restore the folder from a copy, or run rowmill fsck" in says
    before = {path.name: path.read_bytes() for path in manifest.parent.iterdir()}
    says = refused(*train())
    assert "out/store has a checkpoint that cannot be read" in says
    assert "MANIFEST" in says
    after = {path.name: path.read_bytes() for path in manifest.parent.iterdir()}
    assert after == before


def test_a_store_of_a_newer_format_is_not_cleared(here: Path, refused: Callable[..., str]) -> None:
    assert main(train()) == 0
    manifest = Path("out/store/MANIFEST")
    newer = b"rowmill-manifest 6 00000000 0\n"
    manifest.write_bytes(newer)
    for flags in ([], ["--resume"]):
        assert "format version 6, this build reads up to 5" in refused(*train(*flags), code=1)
    assert "upgrade rowmill" in refused("inspect", "out/store", code=1)
    assert manifest.read_bytes() == newer


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no store at nowhere: check the path"),
        (["file"], "no store at file: check the path"),
        (["work"], "no store at work: check the path"),
        ([""], "argument STORE: is empty; give a path"),
        (["work", "--hottest", "-1"], "--hottest: must be an integer from 0 to 999999, got '-1'"),
        (
            ["work", "--hottest", "many"],
            "--hottest: must be an integer from 0 to 999999, got 'many'",
        ),
        (["work", "--hottest", "9" * 30], "must be an integer from 0 to 999999, got '99999"),
    ],
)
def test_invalid_arguments_of_inspect_are_named(
    here: Path, refused: Callable[..., str], arguments: list[str], says: str
) -> None:
    assert says in refused("inspect", *arguments)
    assert sorted(path.name for path in Path("work").iterdir()) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "x"], "generate.rows is not set"),
        (["--out", "", "--rows", "9"], "argument --out: is empty; give a path"),
        (["--out", "file", "--rows", "9"], "file is a file, but a log is a folder"),
        (["--out", "x", "--rows", "0"], "generate.rows must be an integer of at least 1, got '0'"),
        (
            ["--out", "x", "--rows", "9", "--zipf", "-1"],
            "generate.zipf must be a number of at least 0, got '-1'",
        ),
        (["--out", "x", "--rows", "9", "--seed", "9" * 30], "at most 17592186044415"),
        (["--out", "log0", "--rows", "9"], "log0 holds a log generated with other settings"),
    ],
)
def test_invalid_arguments_of_generate_are_named(
    here: Path, refused: Callable[..., str], arguments: list[str], says: str
) -> None:
    assert says in refused("data", "generate", *arguments)
    assert not Path("x").exists()


def test_names_that_look_like_markup_are_printed_literally(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(out="run[/1]")) == 0
    assert "run[/1]/report.html" in capsys.readouterr().out
    with rowmill.open("marked", memory="16MiB") as store:
        for name in ("[/x]", "[red]"):
            store.table(name, dim=1, optimizer=SGD(lr=1.0)).get_or_init([1])
        store.checkpoint()
    assert main(["inspect", "marked"]) == 0
    shown = capsys.readouterr().out
    assert "[/x]" in shown
    assert "[red]" in shown


@pytest.fixture
def looked_up(here: Path) -> Path:
    """A store whose most frequent row is that of the missing id."""
    with rowmill.open("rows", memory="16MiB") as store:
        table = store.table("C1", dim=16, optimizer=SGD(lr=1.0))
        for _ in range(200):
            table.get_or_init([MISSING_ID, 7, MISSING_ID + 1])
            table.get_or_init([MISSING_ID])
        table.put(np.arange(5000), np.ones((5000, 16), np.float32))
        store.checkpoint()
    return here / "rows"


def test_inspect_prints_missing_for_the_missing_id(
    looked_up: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(looked_up)]) == 0
    shown = capsys.readouterr().out
    assert "missing" in shown.split("Hottest rows")[1]
    assert str(MISSING_ID) not in shown
    assert str(MISSING_ID + 1) in shown


def test_inspect_says_where_the_store_of_a_run_is(
    looked_up: Path, refused: Callable[..., str]
) -> None:
    Path("run").mkdir()
    looked_up.rename("run/store")
    assert "no store at run: there is one at run/store" in refused("inspect", "run")


def test_inspect_ends_silently_when_the_pipe_is_closed(looked_up: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rowmill", "inspect", str(looked_up), "--hottest", "9999"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 1
    assert errors == b""
