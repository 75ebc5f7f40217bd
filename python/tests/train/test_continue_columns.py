"""`rowmill train --continue` with a log of other columns: what goes on, what is kept, and that the run can be used.

What could break: an added column changes predictions before it learns, a kill between the parts loses the change, ids of a kept
feature get other rows, or data that was trained on is not recognized because it is read with other columns.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rowmill
from python.tests.train.cut_off import cut_off
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import left, split
from python.tests.train.test_continued_bits import Ranks
from python.tests.train.test_exactly_once import differences
from rowmill.cli import main
from rowmill.ctr import LoadedClicks
from rowmill.ctr.data import Vocabulary
from rowmill.ctr.settings import GenerateConfig
from rowmill.partition.transform import apply_transform, transform_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext

# pyarrow has no types for these calls.
_arrow: Any = pa
_parquet: Any = pq

LOG = GenerateConfig(rows=3_600, seed=3, tables=8, rows_per_table=60)
FLAGS = ("--memory", "64MiB", "--threads", "1", "--batch", "176", "--log-every", "3")
CONFIG = """
[model]
dim = 8
bottom = [16]
top = [16]
deep = [16, 8]

[train]
dense_decay_from = 1
"""
NUMERIC = [f"I{n}" for n in range(1, 5)]
IDS = [f"C{n}" for n in range(1, 6)]


def schema(name: str, dense: list[str], ids: list[str], more: str = "") -> str:
    """A schema file; returns its path."""
    Path(name).write_text(f'label = "label"\ndense = {dense}\nids = {ids}\n{more}')
    return name


@pytest.fixture
def days(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three files of 1,100 rows, of which 880 are trained on: 5 steps. The first one lacks C5, which is new later."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    schema("first.toml", NUMERIC[:3], IDS[:4])
    schema("second.toml", ["I4", "I1", "I2"], ["C5", "C1", "C2", "C3"])
    files = split(log, tmp_path / "days", [1_100] * 3)
    first = _parquet.read_table(files[0])
    pq.write_table(first.drop_columns(["C5"]), files[0])
    return [str(file.relative_to(tmp_path)) for file in files]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs a command, and returns its output."""

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        ended = main(list(arguments))
        printed = capsys.readouterr()
        assert ended == code, printed.err + printed.out
        return printed.out + printed.err

    return run


@pytest.fixture
def begin(days: list[str], command: Callable[..., str]) -> Callable[..., None]:
    """A function that trains on the first day."""

    def run(*more: str, out: str = "run") -> None:
        given = ("--schema", "first.toml", "--config", "config.toml", *FLAGS, *more)
        command("train", "--data", days[0], "--out", out, *given)

    return run


def scores(command: Callable[..., str], run: str, data: str) -> np.ndarray[Any, Any]:
    Path("scores.npy").unlink(missing_ok=True)
    command("predict", run, "--data", data, "--out", "scores.npy")
    return np.load("scores.npy")


ADDED = ("--data", "days/part-001.parquet", "--schema", "added.toml")


@pytest.mark.parametrize(
    ("model", "ids"), [("dlrm", "full"), ("wide_deep", "hash"), ("dcn_v2", "hash")]
)
def test_an_added_column_changes_no_prediction_until_it_learns_and_is_exported(
    begin: Callable[..., None], command: Callable[..., str], days: list[str], model: str, ids: str
) -> None:
    begin("--model", model, "--ids", ids)
    before = scores(command, "run", days[1])
    schema("added.toml", NUMERIC, IDS)
    said = command(
        *("train", "--continue", "run", *ADDED),
        *("--row-lr", "0", "--dense-lr", "0", "--checkpoint-every", "2"),
    )
    assert "New: id column C5 added, numeric column I4 added" in said
    assert "Beginning at step 5, row 880 of part 2" in said
    assert scores(command, "run", days[1]) == pytest.approx(before, abs=1e-6)
    rates = ("--row-lr", "0.05", "--dense-lr", "0.01")
    said = command("train", "--continue", "run", "--data", days[2], *rates)
    assert "New: " not in said
    with rowmill.load("run") as loaded:
        assert isinstance(loaded, LoadedClicks)
        assert loaded.schema.ids == tuple(IDS)
        assert len(loaded.tables["C5"]) > 20
        if model == "wide_deep":
            gates = loaded.model.state_dict()["wide.gates"]
            assert gates.shape == (1,)
            assert gates != 0
    command("export", "run", "--out", "bundle")
    transform = json.loads(Path("bundle/transform.json").read_text())
    with rowmill.partition.Bundle.open("bundle") as bundle:
        (exported,) = bundle.run(apply_transform(transform, _parquet.read_table(days[1])))
    assert exported.numpy() == pytest.approx(scores(command, "run", days[1]), abs=1e-6)
    check_whole(Path("run/store"))


def test_kills_change_no_bit_of_a_run_with_other_columns(
    begin: Callable[..., None],
    command: Callable[..., str],
    days: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin("--model", "wide_deep", "--ids", "hash")
    shutil.copytree("run", "killed")
    second = ("--data", days[1], "--schema", "second.toml", "--checkpoint-every", "2")
    for name in ("run", "killed"):
        steps = () if name == "run" else (5, 6, 9)
        for step in steps:
            with cut_off(step, monkeypatch):
                command("train", "--continue", name, *second)
        command("train", "--continue", name, *second)
        # Without its schema, as the run has the columns now.
        command("train", "--continue", name, "--data", days[2])
    assert differences(left(Path("run")), left(Path("killed"))) == []
    check_whole(Path("killed/store"))


def test_a_dropped_feature_keeps_its_rows_and_can_come_back(
    begin: Callable[..., None], command: Callable[..., str], days: list[str]
) -> None:
    begin("--ids", "vocabulary", "--model", "ffnn")
    with rowmill.load("run") as loaded:
        assert isinstance(loaded, LoadedClicks)
        assert isinstance(loaded.way, Vocabulary)
        kept, known = loaded.tables["C4"].get(np.arange(9)), loaded.way.values[3]
    said = command("train", "--continue", "run", "--data", days[1], "--schema", "second.toml")
    assert "id column C5 added, numeric column I4 added, id column C4 dropped" in said
    with rowmill.load("run") as loaded:
        assert set(loaded.tables) == {"C1", "C2", "C3", "C5"}
        assert np.array_equal(loaded.saved.store.open_table("C4").get(np.arange(9)), kept)
    command("vectors", "run", "--out", "vectors")
    assert sorted(file.stem for file in Path("vectors").glob("*.parquet")) == [
        *("C1", "C2", "C3", "C5"),
    ]
    schema("third.toml", NUMERIC, ["C4", "C5", "C1", "C2"])
    command("train", "--continue", "run", "--data", days[2], "--schema", "third.toml")
    with rowmill.load("run") as loaded:
        assert isinstance(loaded, LoadedClicks)
        # Its values have the ids that they had.
        assert isinstance(loaded.way, Vocabulary)
        values = loaded.way.values[loaded.schema.ids.index("C4")]
        assert np.array_equal(values[: len(known)], known)
        assert loaded.schema.dropped == (("C3", 2),)
    command("predict", "run", "--data", days[2], "--out", "scores.parquet")
    check_whole(Path("run/store"))


def test_a_hash_gives_ids_of_a_feature_their_rows_also_when_exported(
    begin: Callable[..., None], command: Callable[..., str], days: list[str]
) -> None:
    begin("--ids", "hash", "--buckets", "1000")
    log = _parquet.read_table(days[1])
    with rowmill.load("run") as loaded:
        first = loaded.transform(log)[1]
    command("train", "--continue", "run", "--data", days[1], "--schema", "second.toml")
    with rowmill.load("run") as loaded:
        assert isinstance(loaded, LoadedClicks)
        second = loaded.transform(log)[1]
        names = {"dense": "dense", "ids": "ids"}
        transform = json.loads(json.dumps(transform_of(loaded.schema, loaded.way, names)))
    assert (second[:, 1:] == first[:, :3]).all()
    assert (second[:, 0] != first[:, 3]).any()
    assert transform["way"] == {"kind": "numbered_hash", "buckets": 1000, "numbers": [4, 0, 1, 2]}
    assert (apply_transform(transform, log)["ids"] == second).all()
    command("export", "run", "--out", "bundle")
    saved = json.loads(Path("bundle/transform.json").read_text())
    assert saved["way"] == transform["way"]


def test_data_is_recognized_with_the_columns_that_it_had(
    begin: Callable[..., None],
    command: Callable[..., str],
    days: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All commands of a week are given again, with the same flags."""
    begin()
    week = [
        ("--data", days[0], "--schema", "first.toml"),
        ("--data", days[0]),
        ("--data", days[1], "--schema", "second.toml"),
        ("--data", days[2], "--schema", "second.toml"),
    ]
    for given in week:
        command("train", "--continue", "run", *given)
    before = contents(Path("run"))
    for given, says in zip(
        week, ("part 1", "part 1", "part 2", "complete, at step 15"), strict=True
    ):
        said = command("train", "--continue", "run", *given)
        assert "Nothing to do" in said
        assert says in said
    assert contents(Path("run")) == before
    parts = json.loads(Path("run/report.json").read_text())["parts"]
    assert [part["data"] for part in parts] == days[:2]

    def refused(*given: str) -> str:
        said = command("train", "--continue", "run", *given, code=2)
        assert contents(Path("run")) == before
        check_whole(Path("run/store"))
        return said

    says = refused("--data", days[2], "--schema", "first.toml")
    assert "cannot continue: columns was" in says
    assert f"{days[2]} is already a part of this run" in says
    # A file that has grown begins with rows that were trained on, with columns of then.
    shutil.copy(days[1], "same.parquet")
    schema("third.toml", NUMERIC, IDS)
    says = command("train", "--continue", "run", "--data", "same.parquet", "--schema", "third.toml")
    assert "Nothing to do: same.parquet is part 2" in says
    both = [_parquet.read_table(day) for day in days[1:]]
    pq.write_table(_arrow.concat_tables(both), "grown.parquet")
    says = refused("--data", "grown.parquet", "--schema", "third.toml")
    assert "grown.parquet (2,200 rows) begins with the rows of part 2" in says


def test_columns_are_fixed_within_a_part(
    begin: Callable[..., None],
    command: Callable[..., str],
    days: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin()
    schema("roles.toml", NUMERIC[:2], ["I3", *IDS[:4]])
    says = command(
        *("train", "--data", days[0], "--out", "run", "--schema", "roles.toml", "--resume"),
        *("--config", "config.toml", *FLAGS),
        code=2,
    )
    assert "cannot resume: numeric columns were ['I1', 'I2', 'I3'] and are ['I1', 'I2']" in says
    with cut_off(7, monkeypatch):
        command("train", "--continue", "run", "--data", days[1], "--checkpoint-every", "2")
    before = contents(Path("run"))
    for name in ("second.toml", "roles.toml"):
        says = command("train", "--continue", "run", "--data", days[1], "--schema", name, code=2)
        assert "is already a part of this run" in says
    assert contents(Path("run")) == before
    check_whole(Path("run/store"))


def test_a_folder_is_followed_with_other_columns(
    begin: Callable[..., None], command: Callable[..., str], days: list[str]
) -> None:
    begin()
    Path("in").mkdir()
    for day in days[:2]:
        shutil.copy(day, "in")
    follow = ("train", "--continue", "run", "--data", "in", "--follow", "--schema", "second.toml")
    until = ("--until", "part-001.parquet")
    says = command(*follow, *until, code=2)
    assert "in/part-000.parquet has the rows of part 1 of the data" in says
    Path("in/part-000.parquet").unlink()
    whole = _arrow.concat_tables(map(_parquet.read_table, days), promote_options="default")
    pq.write_table(whole, "in/grown.parquet")
    says = command(*follow, "--until", "grown.parquet", code=2)
    assert (
        "in/grown.parquet (3,300 rows) begins with the rows of days/part-000.parquet (1,100 rows)"
        in says
    )
    Path("in/grown.parquet").unlink()
    assert "id column C4 dropped" in command(*follow, *until)
    assert "Nothing to do" in command("train", "--continue", "run", "--data", days[0])
    command("train", "--continue", "run", "--data", days[2])
    check_whole(Path("run/store"))


@pytest.mark.slow
def test_ranks_continue_with_other_columns(
    days: list[str], server: ForkServerContext, command: Callable[..., str]
) -> None:
    start = Ranks(server, 2, Path("printed"))
    given = ("--schema", "first.toml", "--config", "config.toml", *FLAGS, "--model", "dcn_v2")
    assert not start.killed(["train", "--data", days[0], "--out", "run", *given], 99, Path("begun"))
    shutil.copytree("run", "killed")
    before = scores(command, "run", days[1])
    second = ["--data", days[1], "--schema", "second.toml", "--checkpoint-every", "2"]
    for name, steps in (("run", ()), ("killed", (1, 4))):
        for step in steps:
            assert start.killed(["train", "--continue", name, *second], step, Path("begun"))
        assert not start.killed(["train", "--continue", name, *second], 99, Path("begun"))
    assert "id column C5 added" in Path("printed").read_text()
    assert differences(left(Path("run")), left(Path("killed"))) == []
    assert (scores(command, "run", days[1]) != before).any()
    # One process reads the rows of both.
    with rowmill.load("run") as loaded:
        assert set(loaded.tables) == {"C1", "C2", "C3", "C5"}
    check_whole(Path("killed/store"))
