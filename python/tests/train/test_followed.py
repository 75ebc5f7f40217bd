"""Following a run of `rowmill train` during training: another process sees its rows.

What could break: the setting does not reach the store, or the follower needs files that the run does not write. A paused feed
must be reported once by the run, not only in metrics.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

import rowmill
from python.tests.train.configs import Make, quiet
from python.tests.train.runs import DEADLINE_S, fork, until
from rowmill.config import ConfigError
from rowmill.ctr.settings import GenerateConfig
from rowmill.train.run import open_trainer

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

LOG = GenerateConfig(rows=4_000, seed=7, rows_per_table=500)
SETTINGS = {"train__batch": 64, "store__feed": "32MiB"}


def test_the_follow_command_sees_rows_during_training(
    log: Path, server: ForkServerContext, tmp_path: Path
) -> None:
    store = tmp_path / "run" / "store"
    settings = ["--data", log, "--out", tmp_path / "run", "--memory", "64MiB", "--threads", "1"]
    settings += [
        "--batch",
        "64",
        "--epochs",
        "10000",
        "--checkpoint-every",
        "100",
        "--feed",
        "32MiB",
    ]
    run = fork(server, ["train", *map(str, settings)], tmp_path / "printed.txt")
    follower = None
    try:
        until(lambda: any(store.glob("feed-*")), run.is_alive)
        follower = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rowmill",
                "follow",
                str(store),
                "--seconds",
                str(int(DEADLINE_S)),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert follower.stdout is not None
        seen: dict[str, int] = {"rows": 0, "checkpoints": 0}
        for line in follower.stdout:
            seen["checkpoints"] += "checkpoint" in line
            counts = re.fullmatch(
                r"event \d+: ([\d,]+) rows, [\d,]+ deletes; lag [\d.]+ ms.*\n", line
            )
            if counts is not None:
                seen["rows"] = int(counts[1].replace(",", ""))
            if seen["rows"] > 10_000 and seen["checkpoints"] > 1:
                break
        assert run.is_alive(), (tmp_path / "printed.txt").read_text()
        assert seen["rows"] > 10_000, seen
        assert seen["checkpoints"] > 1, seen
    finally:
        for process in (run, follower):
            if process is not None:
                process.kill()
        run.join()
        if follower is not None:
            follower.communicate()


def test_a_follower_has_the_rows_of_a_run_at_its_checkpoint(make: Make) -> None:
    config = make(data__train_rows=640, store__row_memory="512KiB")
    copy: dict[tuple[str, int], list[float]] = {}
    with open_trainer(config, quiet()) as trainer:
        for batch, pooled in trainer.steps(0):
            trainer.train_step(batch, pooled)
        trainer.save()
        for event in rowmill.ChangeFeed(config.train.out / "store").follow(timeout_s=0):
            assert not isinstance(event, rowmill.FeedRollback | rowmill.FeedDeletes)
            if isinstance(event, rowmill.FeedRows):
                keys = ((event.table, int(id_)) for id_ in event.ids)
                copy.update(zip(keys, event.weights.tolist(), strict=True))
        tables = trainer.rows.tables
        assert len(copy) == sum(len(table) for table in tables) > 1000
        for table in tables:
            ids = [id_ for name, id_ in copy if name == table.name]
            expected = np.array([copy[table.name, id_] for id_ in ids], np.float32)
            assert (table.get(ids) == expected).all()


def test_a_paused_feed_is_reported_once(make: Make) -> None:
    """Nothing is published in time, and more rows leave memory than may wait."""
    printed = io.StringIO()
    console = Console(file=printed, width=1000)
    settings = {"store__row_memory": "512KiB", "store__feed_waiting": "1MiB"}
    with open_trainer(make(store__feed_interval_s=600, **settings), console) as trainer:
        table = trainer.rows.tables[0]
        # Deleted ids wait like rows, with sixteen bytes each.
        for first in range(0, 100_000, 20_000):
            ids = np.arange(first, first + 20_000)
            table.put(ids, np.ones((20_000, 16), np.float32))
            table.delete(ids)
        with pytest.raises(rowmill.errors.FeedFailed, match="feed_waiting"):
            trainer.rows.store.publish()
        assert "feed_waiting" in trainer.rows.store.stats()["feed_failure"]
        trainer.save()
        trainer.save()
        assert trainer.rows.store.stats()["feed_failure"] == ""
        assert trainer.rows.store.publish() > 0
    said = printed.getvalue()
    assert said.count("the feed failed before this checkpoint") == 1, said
    assert "1048576 bytes" in said


def test_settings_of_the_feed_are_checked(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"store\.feed needs a store"):
        make(train__plain=True)
    with pytest.raises(rowmill.errors.InvalidInput, match=r"store\.feed"):
        make(store__feed="much")
    with pytest.raises(rowmill.errors.InvalidInput, match=r"store\.feed_waiting"):
        make(store__feed_waiting="much")
