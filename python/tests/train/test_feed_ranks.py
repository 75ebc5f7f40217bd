"""The feeds of all ranks, merged: a follower has the rows of every checkpoint of all ranks.

What could break: rows of steps behind a checkpoint are applied before the checkpoint is reported; a follower waits for a rank
that has nothing to publish; after a kill, rows stay that the run lost; a replicated table is taken from several ranks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from threading import Event, Thread
from typing import TYPE_CHECKING

import numpy as np
import pytest

from python.tests.train.ranked import kill_second, run_ranks
from python.tests.warm import warm_python
from rowmill.cli import main
from rowmill.ctr.settings import GenerateConfig
from rowmill.distributed import FeedOfRanks, versions_of_ranks
from rowmill.errors import FeedGap, FeedMissing, InvalidInput, StoreMissing
from rowmill.saved.saved_run import SavedRun
from rowmill.store.feed import FeedCheckpoint, FeedDeletes, FeedRollback, FeedRows

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

    from rowmill.store.feed import FeedEvent

pytestmark = pytest.mark.slow

LOG = GenerateConfig(rows=2_500, seed=3, tables=4, rows_per_table=300)
"""Of 100 rows per batch: 20 steps."""
LAST = 6
"""The last checkpoint: one each five steps, one after the last step, and one after the test."""
CONFIG = """
[model]
dim = 4
bottom = [8]
top = [8]

[store]
memory = "64MiB"
feed = "32MiB"
feed_interval_s = 0.01

[train]
threads = 1
batch = 100
checkpoint_every = 5

[checkpoint]
versions = 10
"""
SCHEMA = f"""
label = "label"
dense = {[f"I{n}" for n in range(1, 14)]}
ids = ["C1", "C2", "C3", "C4"]
"""
PLACED = "rows,C1=replicated,C2=whole,C3=pooled"
Rows = dict[tuple[str, int], bytes]


def arguments(log: Path, out: Path, *more: str) -> list[str]:
    for name, content in {"config": CONFIG, "schema": SCHEMA}.items():
        out.with_name(f"{name}.toml").write_text(content)
    told = ["train", "--config", str(out.with_name("config.toml"))]
    told += ["--schema", str(out.with_name("schema.toml"))]
    return [*told, "--data", str(log), "--out", str(out), *more]


def torchrun(*program: str, **environment: str) -> None:
    """Four ranks, which torchrun starts again after a failure."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    ran = subprocess.run(
        [warm_python(), *launch, "--max-restarts=1", "--monitor-interval=0.1", *program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr


def saved(run: Path, version: str | None = None) -> Rows:
    """The rows of a checkpoint of a run."""
    with SavedRun.open(run, version=version) as found:
        return {
            (name, id_): row.tobytes()
            for name, ids, weights in found.rows()
            for id_, row in zip(ids.tolist(), np.asarray(weights), strict=True)
        }


class Follower(Thread):
    """Follows a run until `end`. It leaves off and continues whenever nothing is published for a while.

    Attributes:
        at: The rows that it has at each checkpoint, by number.
        seen: The number of events by class.
    """

    def __init__(self, feed: FeedOfRanks) -> None:
        super().__init__(daemon=True)
        self.feed = feed
        self.rows: Rows = {}
        self.at: dict[int, Rows] = {}
        self.seen = Counter[str]()
        self._ends = Event()
        self._failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.follow(0.2)
            while not self._ends.is_set():
                self.follow(0.2)
            # Everything has been published.
            self.follow(0)
        except Exception as error:
            self._failure = error

    def follow(self, timeout_s: float) -> None:
        for event in self.feed.follow(self.feed.position, timeout_s=timeout_s):
            self.seen[type(event).__name__] += 1
            self.apply(event)

    def apply(self, event: FeedEvent) -> None:
        match event:
            case FeedRows():
                for id_, row in zip(event.ids.tolist(), event.weights, strict=True):
                    self.rows[event.table, id_] = row.tobytes()
            case FeedDeletes():
                for id_ in event.ids.tolist():
                    self.rows.pop((event.table, id_), None)
            case FeedCheckpoint():
                self.at[event.epoch] = dict(self.rows)
            case FeedRollback():
                pass

    def end(self) -> None:
        self._ends.set()
        self.join()
        if self._failure is not None:
            raise self._failure


def check(follower: Follower, run: Path) -> None:
    """Check what a follower has had at each version that the run keeps, and what it has at the end."""
    kept = {version["number"] for version in versions_of_ranks(run / "store")}
    compared = kept & follower.at.keys()
    assert len(compared) >= 2
    for number in compared:
        assert follower.at[number] == saved(run, str(number)), number
    assert follower.rows == saved(run)


def test_a_follower_of_four_ranks_has_the_rows_of_every_checkpoint(
    log: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    (out / "store").mkdir(parents=True)
    follower = Follower(FeedOfRanks(out / "store"))
    torchrun("-m", "rowmill", *arguments(log, out, "--placement", PLACED))
    follower.end()
    assert max(follower.at) == LAST
    check(follower, out)


VICTIM = """
import os, signal, sys, time
from rowmill.cli import main
from rowmill.train.run import Trainer

step = Trainer.train_step
dies = os.environ["RANK"] == os.environ["VICTIM"] and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def train_step(trainer, *arguments):
    if dies and trainer.state.step == 8:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return step(trainer, *arguments)

Trainer.train_step = train_step
sys.exit(main())
"""
"""A program that runs the command, and kills one rank between two checkpoints when its feed has published the steps."""


def test_a_follower_goes_back_with_a_killed_run_and_ends_with_its_rows(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    whole = arguments(log, tmp_path / "whole", "--placement", PLACED)
    run_ranks(server, 4, whole, tmp_path / "whole")
    out = tmp_path / "run"
    told = arguments(log, out, "--placement", PLACED)
    program = tmp_path / "program.py"
    program.write_text(VICTIM)
    (out / "store").mkdir(parents=True)
    follower = Follower(FeedOfRanks(out / "store"))
    torchrun(str(program), *told, VICTIM="2")
    follower.end()
    assert follower.seen["FeedRollback"] == 1, "one of all ranks"
    check(follower, out)
    assert follower.rows == saved(tmp_path / "whole")


@pytest.fixture
def followed(log: Path, server: ForkServerContext, tmp_path: Path) -> FeedOfRanks:
    """The feed of a complete run of two ranks, which was read to its end."""
    out = tmp_path / "run"
    run_ranks(server, 2, arguments(log, out), out)
    feed = FeedOfRanks(out / "store")
    assert [type(event) for event in feed.follow(timeout_s=0)][-1] is FeedCheckpoint
    return feed


def test_rows_that_moved_to_other_ranks_are_read_again(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    kill_second(server, arguments(log, out), out)
    feed = FeedOfRanks(out / "store")
    list(feed.follow(timeout_s=0))
    position = feed.position
    run_ranks(server, 3, arguments(log, out, "--resume"), out)
    with pytest.raises(FeedGap, match="the rows have moved to other ranks"):
        list(FeedOfRanks(out / "store").follow(position, timeout_s=0))
    follower = Follower(FeedOfRanks(out / "store"))
    follower.end()
    assert follower.rows == saved(out)


def test_the_command_prints_checkpoints_and_continues(
    followed: FeedOfRanks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["follow", str(tmp_path / "run"), "--seconds", "0"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"event {followed.position}: checkpoint {LAST}"
    assert last.startswith(f"event {followed.position}: {len(saved(tmp_path / 'run')):,} rows, ")
    told = ["follow", str(tmp_path / "run"), "--seconds", "0", "--since", str(followed.position)]
    assert main(told) == 0
    assert f"event {followed.position}: 0 rows" in capsys.readouterr().out


def test_errors_name_the_rank_and_what_to_do(followed: FeedOfRanks, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="since must be a position such as 1:12:740,815, got '7'"
    ):
        list(followed.follow("7", timeout_s=0))
    with pytest.raises(StoreMissing, match="none is not a folder"):
        list(FeedOfRanks(tmp_path / "none").follow(timeout_s=0))
    (tmp_path / "new").mkdir()
    assert list(FeedOfRanks(tmp_path / "new").follow(timeout_s=0)) == [], (
        "there is no checkpoint yet"
    )
    part = tmp_path / "run/store/parts-1/1"
    following = FeedOfRanks(tmp_path / "run/store")
    events = following.follow(timeout_s=30)
    while not isinstance(next(events), FeedCheckpoint):
        pass
    shutil.move(part, tmp_path / "gone")
    with pytest.raises(StoreMissing, match=f"the part of rank 1 is gone, {part}"):
        next(events)
    for since in (None, followed.position):
        with pytest.raises(StoreMissing, match=f"the part of rank 1 is gone, {part}"):
            list(followed.follow(since, timeout_s=0))
    shutil.move(tmp_path / "gone", part)
    for file in part.glob("feed-*"):
        file.unlink()
    with pytest.raises(FeedMissing, match=f"rank 1 publishes no feed in {part}: train with --feed"):
        list(followed.follow(timeout_s=0))
