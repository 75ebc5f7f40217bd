"""`--replace`: the old run stays whole until the new one has a checkpoint, wherever the command is killed.

Processes of `rowmill train` are killed with SIGKILL before each change that they make to the folders of the runs: each
folder made, renamed, linked or removed. After each kill the old run or the new one has all its blocks, a command without
`--replace` changes nothing and names both folders, the commands that it prints bring the old run back, and `--replace`
gives the same run as in an empty folder.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rowmill
from python.tests.train.kept import check_whole, contents, kill_before, with_checkpoints
from python.tests.train.runs import command, ended
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=600, seed=3, rows_per_table=50)
SAID = r"task ctr, step 2 \(\d+ rows\), saved 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, [\d.]+ [KM]iB"
"""What is said of the old run."""


def arguments(log: Path, out: Path, *more: str) -> list[str]:
    flags = [
        "--data",
        log,
        "--out",
        out,
        "--memory",
        "64MiB",
        "--threads",
        1,
        "--checkpoint-every",
        2,
    ]
    return ["train", *map(str, flags), *more]


OLD = ("--dim", "4", "--train-rows", "512")
"""Settings of the old run, of two steps."""


@pytest.fixture
def old(log: Path, tmp_path: Path) -> Path:
    """A run, with a file of its user beside it."""
    out = tmp_path / "run"
    assert main(arguments(log, out, *OLD)) == 0
    (out / "notes.txt").write_text("mine")
    return out


@pytest.fixture(scope="module")
def fresh(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of the new run in an empty folder."""
    out = tmp_path_factory.mktemp("fresh") / "run"
    assert main(arguments(log, out)) == 0
    return results(out)


def is_old(rows: Path) -> bool:
    with rowmill.open(rows, memory="64MiB", read_only=True) as store:
        return store.open_table(store.table_names()[0]).dim == 4


def results(out: Path) -> dict[str, Any]:
    report = json.loads((out / "report.json").read_text())
    names = ("steps", "live_rows", "train_rows")
    return {"test": report["test"], "run": {name: report["run"][name] for name in names}}


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must fail and change no file; returns its line on standard error."""

    def run(command: list[str], *folders: Path, code: int = 2) -> str:
        before = contents(*folders)
        capsys.readouterr()
        assert main(command) == code
        assert contents(*folders) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return run


def test_a_new_run_says_what_is_there_and_what_to_do(
    log: Path, old: Path, refused: Callable[..., str]
) -> None:
    line = refused(arguments(log, old), old)
    assert re.fullmatch(
        rf"rowmill: {old}/store has the checkpoint of a run \({SAID}\): pass --resume to continue it, another --out for a "
        rf"new run, --continue {old} to train it on new data, or --replace for a new run in its place; --replace keeps "
        rf"the old one as {old}\.replaced until the new one has its first checkpoint",
        line,
    )
    check_whole(old / "store")
    assert main(arguments(log, old, *OLD, "--resume")) == 0


def test_the_new_run_takes_the_place_of_the_old_one(
    log: Path, old: Path, fresh: dict[str, Any]
) -> None:
    before = len(list((old / "events").iterdir()))
    assert main(arguments(log, old, "--replace")) == 0
    assert results(old) == fresh
    assert not old.with_name("run.replaced").exists()
    assert (old / "notes.txt").read_text() == "mine"
    assert len(list((old / "events").iterdir())) == before == 1
    check_whole(old / "store")
    # It is the same command again.
    assert main(arguments(log, old, "--replace")) == 0
    assert results(old) == fresh


def test_replace_without_an_old_run_is_a_new_run(
    log: Path, tmp_path: Path, fresh: dict[str, Any]
) -> None:
    assert main(arguments(log, tmp_path / "run", "--replace")) == 0
    assert results(tmp_path / "run") == fresh
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("store/thesis.tex", "it holds thesis.tex, which is not a file of a store"),
        ("events/thesis.tex", "it holds thesis.tex, which is not a file of a run"),
    ],
)
def test_a_file_of_the_user_is_not_replaced(
    log: Path, old: Path, refused: Callable[..., str], place: str, said: str
) -> None:
    (old / place).write_text("mine")
    line = refused(arguments(log, old, "--replace"), old)
    assert said in line
    assert "move that file, or pass another --out" in line
    assert not old.with_name("run.replaced").exists()


def test_a_folder_of_the_user_is_not_the_place_of_the_old_run(
    log: Path, old: Path, refused: Callable[..., str]
) -> None:
    kept = old.with_name("run.replaced")
    kept.mkdir()
    (kept / "thesis.tex").write_text("mine")
    line = refused(arguments(log, old, "--replace"), old, kept)
    assert f"would keep the old run as {kept}, which exists: rename it" in line


def test_a_run_in_progress_is_not_replaced(
    log: Path, old: Path, refused: Callable[..., str]
) -> None:
    with closing(rowmill.open(old / "store", memory="64MiB")):
        line = refused(arguments(log, old, "--replace"), old, code=1)
    assert f"another run has locked {old}/store" in line
    assert not old.with_name("run.replaced").exists()
    check_whole(old / "store")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--resume"],
            "train.resume continues the run in --out and train.replace begins a new one",
        ),
        (["--plain"], "train.replace needs a store, because a plain run makes no checkpoint"),
        (["--data", "nowhere"], "data nowhere does not exist"),
        (["--row-memory", "1KiB"], "is too small"),
        (["--memory", "1MiB"], "memory must be at least"),
    ],
)
def test_a_command_that_cannot_begin_leaves_the_old_run(
    log: Path, old: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = contents(old)
    assert main([*arguments(log, old, "--replace"), *flags]) == 2
    assert said in capsys.readouterr().err
    assert not old.with_name("run.replaced").exists()
    check_whole(old / "store")
    assert contents(old) == files


def test_a_damaged_run_is_not_replaced(log: Path, old: Path, refused: Callable[..., str]) -> None:
    manifest = old / "store/MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-100])
    line = refused(arguments(log, old, "--replace"), old)
    assert "has a checkpoint that cannot be read" in line
    assert not old.with_name("run.replaced").exists()


# Kills.


def killed(arguments: list[str], printed: Path, number: int, of: str, counted: Path) -> None:
    kill_before(number, of, counted)
    command(arguments, printed, {}, None)


def kill_at_each_step(
    server: ForkServerContext,
    start: Callable[[], tuple[Path, list[str]]],
    judge: Callable[[Path], None],
    tmp_path: Path,
) -> int:
    """Run a command again and again, killed before another change each time; returns the number of changes.

    Args:
        server: Forks the processes.
        start: Makes the folder of an old run; returns it and the arguments.
        judge: Checks the folder after the kill.
        tmp_path: A folder for outputs.
    """
    counted, printed = tmp_path / "counted", tmp_path / "printed"
    number = 0
    while True:
        number += 1
        out, command = start()
        process = server.Process(target=killed, args=(command, printed, number, str(out), counted))
        process.start()
        code = ended(process)
        if code == 0:
            return number - 1
        assert code == -signal.SIGKILL, printed.read_text()[-2000:]
        judge(out)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "with_store",
    [pytest.param(False, id="out"), pytest.param(True, id="store", marks=pytest.mark.long)],
)
def test_killed_between_any_two_steps_nothing_is_lost(
    log: Path,
    server: ForkServerContext,
    tmp_path: Path,
    fresh: dict[str, Any],
    refused: Callable[..., str],
    with_store: bool,
) -> None:
    number, seen = 0, set[str]()
    template = tmp_path / "template"
    rows = ("--store", str(tmp_path / "template-rows")) if with_store else ()
    assert main(arguments(log, template, *OLD, *rows)) == 0
    (template / "notes.txt").write_text("mine")

    def flags(out: Path) -> list[str]:
        return ["--store", f"{out}-rows"] if with_store else []

    def start() -> tuple[Path, list[str]]:
        nonlocal number
        number += 1
        out = tmp_path / f"run-{number}"
        shutil.copytree(template, out, symlinks=True)
        if with_store:
            shutil.copytree(tmp_path / "template-rows", f"{out}-rows")
            (out / "store").unlink()
            (out / "store").symlink_to(f"{out}-rows")
        return out, arguments(log, out, "--replace", *flags(out))

    def judge(out: Path) -> None:
        kept = Path(f"{out}.replaced")
        rows = Path(f"{out}-rows") if with_store else out / "store"
        kept_rows = Path(f"{out}-rows.replaced") if with_store else kept / "store"
        folders = [path for path in (out, kept, rows, kept_rows) if path.exists()]
        going = (kept / ".removes").exists()
        whole = with_checkpoints(rows, *([] if going else [kept_rows]))
        assert rows in whole or is_old(kept_rows), "one run is whole"
        assert (out / "notes.txt").read_text() == "mine"
        if kept_rows in whole and rows not in whole:
            seen.add("moved")
            for more in ([], ["--resume"]):
                line = refused(arguments(log, out, *flags(out), *more), *folders)
                assert f"{kept} keeps a run that --replace moved there from {out}" in line
            bring_back(line, out, kept, rows)
        else:
            seen.add("replaced" if kept.exists() else "before or after")
            line = refused(arguments(log, out, *flags(out)), *folders)
            assert f"{out}/store has the checkpoint of a run" in line
        assert main(arguments(log, out, "--replace", *flags(out))) == 0
        assert results(out) == fresh
        assert not kept.exists()
        assert not kept_rows.exists()
        assert (out / "notes.txt").read_text() == "mine"
        check_whole(rows)

    def bring_back(line: str, out: Path, kept: Path, rows: Path) -> None:
        """The printed commands bring the old run back, in a copy."""
        moved = Path(f"{out}-copy")
        names = [path for path in tmp_path.iterdir() if path.name.startswith(out.name)]
        moved.mkdir()
        for path in names:
            shutil.copytree(path, moved / path.name, symlinks=True)
        commands = line.partition("bring the old one back with: ")[2]
        # The copy is elsewhere, links included.
        commands = commands.replace(str(tmp_path), str(moved))
        subprocess.run(["bash", "-ec", commands], check=True)
        copy = moved / out.name
        assert not (moved / kept.name).exists()
        again = arguments(log, copy, *OLD, "--resume")
        again += ["--store", str(moved / rows.name)] if with_store else []
        assert main(again) == 0
        assert is_old(moved / rows.relative_to(tmp_path))
        assert (copy / "report.json").exists()
        shutil.rmtree(moved)

    changes = kill_at_each_step(server, start, judge, tmp_path)
    assert changes > 12
    assert seen == {"moved", "replaced", "before or after"}
