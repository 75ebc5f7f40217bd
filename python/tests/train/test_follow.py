"""`rowmill train --data FOLDER --follow`: files are trained on as they arrive, once, in the order of their names."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rowmill
from python.tests.train.cut_off import cut_off
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import left, split
from python.tests.train.runs import ended, epoch, fork, until
from python.tests.train.test_exactly_once import differences
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.train.follow import averaged
from rowmill.train.saved_files import saved_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext

pytestmark = pytest.mark.slow

# pyarrow has no types for these calls.
_arrow: Any = pa
_parquet: Any = pq

LOG = GenerateConfig(rows=4_000, seed=3, rows_per_table=100)
SIZES = [330, 250, 410, 120]
"""Of 100 rows per batch: 4, 3, 5 and 2 steps."""
FLAGS = ("--memory", "64MiB", "--threads", "1", "--batch", "100", "--log-every", "2")


@pytest.fixture
def files(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the log, outside of the folder that is followed."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    return split(log, tmp_path / "made", SIZES)


@pytest.fixture
def command(files: list[Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that follows a folder, and returns the output."""

    def run(*more: str, out: str = "run", code: int = 0) -> str:
        capsys.readouterr()
        given = ["train", "--data", "in", "--follow", *FLAGS, "--out", out, *more]
        ended = main(given)
        printed = capsys.readouterr()
        assert ended == code, printed.out + printed.err
        return printed.out + printed.err

    return run


def arrive(file: Path) -> None:
    """A file arrives by a rename."""
    shutil.copy2(file, f"in/.{file.name}")
    Path(f"in/.{file.name}").rename(f"in/{file.name}")


def report(out: str = "run") -> dict[str, Any]:
    return json.loads(Path(out, "report.json").read_text())


@pytest.fixture
def whole(files: list[Path], command: Callable[..., str]) -> dict[str, Any]:
    """What a run leaves that finds all files at its start."""
    for file in files:
        arrive(file)
    command("--until", files[-1].name, out="whole")
    return left(Path("whole"))


def test_files_are_trained_on_once_and_predicted_before(
    files: list[Path], command: Callable[..., str]
) -> None:
    for file in files:
        arrive(file)
    Path("in/notes.md").write_text("no rows")
    Path("in/_part.parquet").write_text("not whole yet")
    said = command("--until", files[2].name)
    assert "part-001.parquet: 250 rows, auc" in said
    assert "part-003" not in said
    found = report()
    assert [Path(part["data"]).name for part in found["parts"]] == [file.name for file in files[:3]]
    assert [part["steps"] for part in found["parts"]] == [4, 7, 12]
    assert [part["examples"] for part in found["parts"]] == [330, 580, 990]
    assert found["run"]["train_rows"] == found["curve"][-1]["rows"] == 990
    assert found["test"] == pytest.approx(averaged(found["curve"], 0))
    rows = [330, 250, 410]
    losses = [part["test"]["logloss"] for part in found["parts"]]
    mean = sum(map(float.__mul__, map(float, rows), losses)) / 990
    assert found["test"]["logloss"] == pytest.approx(mean)
    assert "online AUC" in said
    assert "online AUC" in Path("run/report.html").read_text()
    check_whole(Path("run/store"))
    # The files before the position are not needed.
    for file in files[:3]:
        Path("in", file.name).unlink()
    assert "part-003.parquet: 120 rows" in command("--resume", "--until", files[3].name)


def test_it_ends_without_a_file_after_until(files: list[Path], command: Callable[..., str]) -> None:
    arrive(files[3])
    command("--until", "part-002.parquet")
    assert not Path("run/store/MANIFEST").exists()


def test_files_that_arrive_later_and_kills_change_no_bit(
    whole: dict[str, Any],
    files: list[Path],
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for file in files[1:]:
        Path("in", file.name).unlink()
    every = ("--checkpoint-every", "3")
    command("--until", files[0].name, *every)
    for number, step in ((1, 5), (1, 6), (2, 9), (3, 13)):
        if not Path("in", files[number].name).exists():
            arrive(files[number])
        with cut_off(step, monkeypatch):
            command("--resume", "--until", files[number].name, *every)
    command("--resume", "--until", files[3].name, *every)
    assert differences(whole, left(Path("run"))) == []
    check_whole(Path("run/store"))


def test_kills_change_no_bit(
    whole: dict[str, Any], files: list[Path], server: ForkServerContext, tmp_path: Path
) -> None:
    given = ["train", "--data", str(tmp_path / "in"), "--follow", "--until", files[-1].name, *FLAGS]
    given += ["--out", str(tmp_path / "run"), "--resume", "--checkpoint-every", "2"]
    # The last one ends before that step.
    for number, step in enumerate((3, 4, 6, 99)):
        begun = tmp_path / f"begun-{number}"
        process = fork(server, given, tmp_path / "printed", tell=(step, begun))
        if step < 99:
            until(begun.exists, process.is_alive)
            process.kill()
            assert ended(process) == -signal.SIGKILL
        else:
            assert ended(process) == 0, (tmp_path / "printed").read_text()
    assert differences(whole, left(Path("run"))) == []


@pytest.mark.parametrize("threads", [1, 16])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_a_checkpoint_and_a_report(
    files: list[Path],
    command: Callable[..., str],
    server: ForkServerContext,
    tmp_path: Path,
    number: int,
    threads: int,
) -> None:
    if (number, threads) == (signal.SIGTERM, 16):
        pytest.skip("as the others")
    (tmp_path / "in").rmdir()
    Path("in").mkdir()
    out = tmp_path / "run"
    given = ["train", "--data", str(tmp_path / "in"), "--follow", "--out", str(out), *FLAGS]
    process = fork(server, [*given, "--threads", str(threads)], tmp_path / "printed")
    arrive(files[0])
    until(lambda: epoch(out / "store") == 1, process.is_alive)
    arrive(files[1])
    # A checkpoint is made when there is no further file.
    until(lambda: epoch(out / "store") == 2, process.is_alive)
    assert process.pid is not None
    os.kill(process.pid, number)
    assert ended(process) == 0, (tmp_path / "printed").read_text()
    assert [part["steps"] for part in report()["parts"]] == [4, 7]
    assert epoch(out / "store") == 2
    check_whole(out / "store")


def test_steps_in_flight_at_a_signal_are_trained_once(
    files: list[Path],
    command: Callable[..., str],
    server: ForkServerContext,
    tmp_path: Path,
) -> None:
    # Lookups count for admission, so a lookup of a step that is not trained would be counted twice after a restart.
    Path("config.toml").write_text("[admission]\nmin_count = 2\n")
    more = ("--config", str(tmp_path / "config.toml"), "--in-flight", "4")
    for file in files:
        arrive(file)
    command("--until", files[-1].name, *more, out="whole")
    given = ["train", "--data", str(tmp_path / "in"), "--follow", *FLAGS, *more]
    given += ["--out", str(tmp_path / "run")]
    begun = tmp_path / "begun"
    process = fork(server, given, tmp_path / "printed", tell=(5, begun))
    until(begun.exists, process.is_alive)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == 0, (tmp_path / "printed").read_text()
    assert report()["run"]["steps"] < 14
    command("--resume", "--until", files[-1].name, *more)
    assert differences(left(Path("whole")), left(Path("run"))) == []


def test_a_file_that_changed_or_came_late_is_an_error(
    files: list[Path], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(files[1])
    command("--until", files[1].name)

    def refused(*more: str) -> str:
        before = contents(Path("run/store"))
        said = command("--resume", *more, code=2)
        assert contents(Path("run/store")) == before
        check_whole(Path("run/store"))
        return said.splitlines()[-1]

    arrive(files[0])
    says = refused()
    assert "in/part-000.parquet sorts before part-001.parquet, which was trained on already" in says
    Path("in/part-000.parquet").unlink()
    os.utime("in/part-001.parquet", ns=(1, 1))
    assert "in/part-001.parquet has changed since it was trained on" in refused()
    Path("in/part-001.parquet").unlink()
    shutil.copy2(files[1], "in/part-002.parquet")
    assert "in/part-002.parquet has the rows of part 1 of the data" in refused()
    _joined("in/part-002.parquet", files[1], files[2])
    says = refused()
    assert "in/part-002.parquet (660 rows) begins with the rows of " in says
    assert "in/part-001.parquet (250 rows), which were trained on: leave only the new rows" in says
    Path("in/part-002.parquet").unlink()
    # In the middle of a file.
    arrive(files[2])
    with cut_off(6, monkeypatch):
        command("--resume", "--checkpoint-every", "2")
    assert "--row-lr" not in (says := refused("--row-lr", "0.5"))
    assert "rows.lr was 0.02 and is 0.5" in says
    Path("in/part-002.parquet").rename("elsewhere")
    assert "in/part-002.parquet is gone, but not all of its rows were trained on" in refused()
    shutil.copy2(files[3], "in/part-002.parquet")
    assert "in/part-002.parquet has changed since" in refused()
    Path("elsewhere").rename("in/part-002.parquet")
    assert "part-002.parquet: 410 rows" in command("--resume", "--until", "part-002.parquet")


def _joined(path: str, *files: Path) -> None:
    _parquet.write_table(_arrow.concat_tables([_parquet.read_table(file) for file in files]), path)


def test_without_a_file_the_report_of_the_part_before_stays(
    files: list[Path], command: Callable[..., str]
) -> None:
    assert main(["train", "--data", str(files[0]), "--out", "run", *FLAGS]) == 0
    before = report()
    arrive(files[1])
    assert main(["train", "--continue", "run", "--data", "in", "--follow", "--until", "a"]) == 0
    assert report() == before
    check_whole(Path("run/store"))


@pytest.mark.parametrize(("first", "is_known"), [(31, False), (32, True), (1024, True)])
def test_a_file_that_has_grown_under_another_name_is_an_error(
    log: Path, command: Callable[..., str], first: int, is_known: bool
) -> None:
    files = split(log, Path("grown"), [first, 1500 - first])
    shutil.copy2(files[0], "in/a.parquet")
    _joined("in/b.parquet", *files)
    # Both are taken by one process.
    says = command("--until", "b.parquet", code=2 if is_known else 0)
    assert ("in/b.parquet (1,500 rows) begins with the rows of " in says) == is_known
    assert ("b.parquet: 1,500 rows, auc" in says) != is_known
    command("--until", "a.parquet", out="day")
    train_rows = ("--train-rows", "1500")
    code = main(["train", "--continue", "day", "--data", "in/b.parquet", *train_rows])
    assert code == (2 if is_known else 0)


def test_a_followed_run_is_continued_and_a_run_is_followed(
    files: list[Path], command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--data", str(files[0]), "--out", "run", *FLAGS]) == 0
    arrive(files[1])

    def go_on(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["train", "--continue", "run", *arguments]) == code
        printed = capsys.readouterr()
        return printed.out + printed.err

    go_on("--data", "in", "--follow", "--until", files[1].name)
    assert "Nothing to do: " in go_on("--data", str(files[1]))
    go_on("--data", str(files[2]), "--train-rows", "400")
    found = report()
    assert [part["rows"] for part in found["parts"]] == SIZES[:2]
    assert [part["examples"] for part in found["parts"]] == [264, 514]
    assert found["config"]["data"]["follow"] is False
    assert found["run"]["test_rows"] == 10


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--until", "x"], "data.until = 'x' ends --follow: pass --follow"),
        (["--follow", "--until", ""], "data.until is empty: pass the name of the last file"),
        (["--follow", "--epochs", "2"], "train.epochs = 2 (each file is trained on once) does not"),
        (["--follow", "--train-rows", "9"], "data.train_rows (all rows are trained on) does not"),
        (["--follow", "--plain"], "train.plain (it makes no checkpoints) does not"),
        (["--follow", "--task", "kge"], "data.follow applies only to --task ctr"),
        (["--follow", "--data", "nowhere"], "data.path = 'nowhere' is not a folder"),
    ],
)
def test_wrong_settings_are_refused(
    files: list[Path], capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert main(["train", "--data", "in", "--out", "run", *FLAGS, *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_vocabulary_grows_with_each_file(
    files: list[Path], command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--ids", "vocabulary", "--min-count", "3")
    for file in files:
        arrive(file)
    command("--until", files[-1].name, *more, out="whole")
    for file in files:
        Path("in", file.name).unlink()
    known: list[list[list[int]]] = []
    for number, step in ((0, 2), (1, 5), (2, 8), (3, 13)):
        arrive(files[number])
        until_it = ("--resume", "--until", files[number].name, *more)
        with cut_off(step, monkeypatch):
            command(*until_it, "--checkpoint-every", "1")
        command(*until_it, "--checkpoint-every", "1")
        known.append(saved_file(Path("run"), "vocabulary"))
    assert differences(left(Path("whole")), left(Path("run"))) == []
    assert saved_file(Path("whole"), "vocabulary") == known[-1]
    for before, after in itertools.pairwise(known):
        pairs = list(zip(before, after, strict=True))
        assert all(new[: len(old)] == old for old, new in pairs)
        assert any(len(new) > len(old) for old, new in pairs)
    check_whole(Path("run/store"))
    assert main(["predict", "run", "--data", str(files[0]), "--out", "scores.npy"]) == 0


def test_a_followed_vocabulary_is_continued_but_a_fixed_one_is_not_followed(
    files: list[Path], command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--ids", "vocabulary", "--min-count", "3")
    arrive(files[0])
    command("--until", files[0].name, *more)
    before: list[list[int]] = saved_file(Path("run"), "vocabulary")
    assert main(["train", "--continue", "run", "--data", str(files[1]), "--train-rows", "250"]) == 0
    after: list[list[int]] = saved_file(Path("run"), "vocabulary")
    assert sum(map(len, after)) > sum(map(len, before))
    with rowmill.open("run/store", read_only=True) as store:
        assert store.open_table("C1").num_rows is None
    assert main(["train", "--data", str(files[0]), "--out", "fixed", *FLAGS, *more]) == 0
    arrive(files[1])
    kept = contents(Path("fixed"))
    assert main(["train", "--continue", "fixed", "--data", "in", "--follow"]) == 2
    assert "table C1 has a fixed number of ids" in capsys.readouterr().err
    assert contents(Path("fixed")) == kept
    check_whole(Path("fixed/store"))
