"""`rowmill train --data FOLDER --follow` on many ranks: rank 0 looks for files, and all ranks end after the same step.

What could break: ranks that take different files or end after different steps wait for each other without end; steps that were
begun when the signal came are counted twice after a restart.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.ports import free_port
from python.tests.train.kept import check_whole, contents
from python.tests.train.parts import left, split
from python.tests.train.runs import ended, fork, until
from python.tests.train.test_exactly_once import differences
from rowmill.ctr.settings import GenerateConfig
from rowmill.distributed import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=3_000, seed=3, tables=4, rows_per_table=100)
SIZES = [330, 250, 1_410, 120]
"""Of 100 rows per batch: 4, 3, 15 and 2 steps."""
CONFIG = """
[model]
dim = 8
bottom = [16]
top = [16]

[store]
memory = "64MiB"

[admission]
min_count = 2

[train]
threads = 1
batch = 100
log_every = 2
in_flight = 3
"""
SCHEMA = f"""
label = "label"
dense = {[f"I{n}" for n in range(1, 14)]}
ids = ["C1", "C2", "C3", "C4"]
"""


@pytest.fixture
def files(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of the log, outside of the folder that is followed."""
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("config.toml").write_text(CONFIG)
    Path("schema.toml").write_text(SCHEMA)
    return split(log, tmp_path / "made", SIZES)


@pytest.fixture
def started(
    files: list[Path], server: ForkServerContext, tmp_path: Path
) -> Callable[..., list[BaseProcess]]:
    """A function that starts two ranks; each makes the file `begun` when it begins a step."""

    def start(*more: str, out: str = "run", begins: int = 0) -> list[BaseProcess]:
        (tmp_path / "begun").unlink(missing_ok=True)
        given = ["train", "--config", str(tmp_path / "config.toml"), "--follow"]
        given += ["--schema", str(tmp_path / "schema.toml"), "--data", str(tmp_path / "in")]
        given += ["--out", str(tmp_path / out), *more]
        port = free_port()
        return [
            fork(
                server,
                given,
                tmp_path / f"printed-{rank}",
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
                (begins, tmp_path / "begun") if begins else None,
            )
            for rank in (0, 1)
        ]

    return start


def arrive(file: Path) -> None:
    """A file arrives by a rename."""
    shutil.copy2(file, f"in/.{file.name}")
    Path(f"in/.{file.name}").rename(f"in/{file.name}")


def codes(ranks: list[BaseProcess]) -> list[int]:
    return [ended(rank) for rank in ranks]


def succeed(ranks: list[BaseProcess]) -> None:
    assert codes(ranks) == [0, 0], [Path(f"printed-{rank}").read_text() for rank in (0, 1)]


def test_a_signal_kills_and_late_files_change_no_bit(
    files: list[Path], started: Callable[..., list[BaseProcess]]
) -> None:
    for file in files:
        arrive(file)
    succeed(started("--until", files[-1].name, out="whole"))
    assert "part-002.parquet: 1,410 rows, auc" in Path("printed-0").read_text()
    assert Path("printed-1").read_text() == ""
    for file in files[1:]:
        Path("in", file.name).unlink()

    # A file that arrives while the ranks wait; a signal to one rank ends both in the middle of a file.
    ranks = started(begins=9)
    until(lambda: _epoch() >= 1, ranks[0].is_alive)
    arrive(files[1])
    arrive(files[2])
    until(Path("begun").exists, ranks[0].is_alive)
    pid = ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    succeed(ranks)
    found: dict[str, Any] = json.loads(Path("run/report.json").read_text())
    assert [part["steps"] for part in found["parts"]] == [4, 7]
    assert 9 <= found["run"]["steps"] < 22
    check_whole(Path("run/store"))

    ranks = started("--resume", "--checkpoint-every", "2", begins=4)
    until(Path("begun").exists, ranks[0].is_alive)
    for rank in ranks:
        rank.kill()
    assert codes(ranks) == [-signal.SIGKILL] * 2
    arrive(files[3])
    succeed(started("--resume", "--until", files[-1].name))
    assert differences(left(Path("whole")), left(Path("run"))) == []
    check_whole(Path("run/store"))


def _epoch() -> int:
    manifest = Manifest.load(Path("run/store"))
    return 0 if manifest is None else manifest.number


def test_a_file_that_changed_is_an_error_of_all_ranks(
    files: list[Path], started: Callable[..., list[BaseProcess]]
) -> None:
    arrive(files[0])
    arrive(files[1])
    succeed(started("--until", files[1].name, "--ids", "vocabulary", "--min-count", "3"))
    before = contents(Path("run/store"))
    os.utime("in/part-001.parquet", ns=(1, 1))
    assert codes(started("--resume", "--ids", "vocabulary", "--min-count", "3")) == [2, 2]
    said = "in/part-001.parquet has changed since it was trained on"
    assert said in Path("printed-0").read_text()
    assert contents(Path("run/store")) == before
    check_whole(Path("run/store"))
