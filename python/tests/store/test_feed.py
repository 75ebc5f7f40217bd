"""Following a store from other processes, with both sides killed: the copy ends equal to the store."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest

import rowmill
from python.tests.warm import warm_python
from rowmill import errors
from rowmill.optim import SGD

if TYPE_CHECKING:
    from pathlib import Path

_STEPS = 400
_DEADLINE_S = 120

# Trains from its last checkpoint and prints each step; a row in table `done` signals the end.
_TRAINER = f"""
import sys, time
import numpy as np
import rowmill
store = rowmill.open(sys.argv[1], memory="16MiB", row_memory="512KiB", feed="32MiB", feed_interval_s=0.005)
table = store.table("t", dim=16, optimizer=rowmill.optim.Adagrad(lr=0.5))
done = store.table("done", dim=16, optimizer=rowmill.optim.Adagrad(lr=0.5))
step = int(store.attachment("step") or 0)
while step < {_STEPS}:
    drawn = np.random.default_rng(step)
    ids = drawn.integers(0, 20_000, 200)
    table.rmw(ids, drawn.normal(size=(200, 16)).astype(np.float32))
    if step % 7 == 0:
        table.delete(drawn.integers(0, 20_000, 50))
    step += 1
    print(step, flush=True)
    if step % 40 == 0:
        store.checkpoint(attachments={{"step": str(step).encode()}})
    time.sleep(0.002)
done.put([1], np.zeros((1, 16), np.float32))
store.checkpoint(attachments={{"step": str(step).encode()}})
store.publish()
store.close()
"""

# Keeps a copy in its own store, with the sequence number attached to the same checkpoint. Prints the number of checkpoints
# since its start.
_FOLLOWER = """
import sys
import rowmill
copy = rowmill.open(sys.argv[2], memory="16MiB", history=0)
tables = {name: copy.table(name, dim=16, optimizer=rowmill.optim.SGD(lr=1.0)) for name in ("t", "done")}
since = copy.attachment("sequence")
rollbacks = int(copy.attachment("rollbacks") or 0)
if copy.attachment("ended"):  # Killed between its last checkpoint and its exit: nothing more will come.
    sys.exit()
events = saves = 0
for event in rowmill.ChangeFeed(sys.argv[1]).follow(None if since is None else int(since), timeout_s=300):
    match event:
        case rowmill.FeedRows():
            tables[event.table].put(event.ids, event.weights)
        case rowmill.FeedDeletes():
            tables[event.table].delete(event.ids)
        case rowmill.FeedRollback():
            rollbacks += 1
    events += 1
    done = tables["done"].contains([1])[0] and isinstance(event, rowmill.FeedCheckpoint)
    if (events % 20 == 0 and event.sequence > 0) or done:
        saved = {"sequence": str(event.sequence).encode(), "rollbacks": str(rollbacks).encode()}
        saved |= {"ended": b"yes"} if done else {}
        copy.checkpoint(attachments=saved)
        saves += 1
        print(saves, flush=True)
    if done:
        break
else:
    sys.exit("the feed went silent")
copy.close()
"""


def run_with_kills(script: str, arguments: list[Path], marks: list[int]) -> int:
    """Run a script to its end, and kill and restart it on the way: in each life, once it prints the next mark or more.

    Returns:
        The number of kills.
    """
    for kills, mark in enumerate([*marks, sys.maxsize]):
        command = [sys.executable, "-c", script, *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            hung = threading.Timer(_DEADLINE_S, process.kill)
            hung.start()
            assert process.stdout is not None
            is_killed = any(int(line) >= mark for line in process.stdout)
            if is_killed:
                process.kill()
            code = process.wait()
            hung.cancel()
        if not is_killed:
            assert code == 0, f"killed {kills} times, then ended with {code}"
            return kills
    raise AssertionError("no script prints sys.maxsize")


def rows(folder: Path) -> dict[int, list[float]]:
    with rowmill.open(folder, memory="16MiB", read_only=True) as store:
        found = {
            int(id_): row.tolist()
            for ids, weights in store.open_table("t").scan()
            for id_, row in zip(ids, weights, strict=True)
        }
        assert len(found) == len(store.open_table("t"))
        return found


@pytest.mark.parametrize("seed", range(2))
def test_killed_trainers_and_followers_end_with_equal_stores(seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed)
    store, copy = tmp_path / "store", tmp_path / "copy"
    steps = [
        drawn.randrange(part + 10, part + _STEPS // 4) for part in range(0, _STEPS, _STEPS // 4)
    ]
    saves = [drawn.randrange(1, 4) for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        trainer = pool.submit(run_with_kills, _TRAINER, [store], steps)
        end = time.monotonic() + _DEADLINE_S
        while not list(store.glob("feed-*")):
            assert time.monotonic() < end
            time.sleep(0.01)
        follower = pool.submit(run_with_kills, _FOLLOWER, [store, copy], saves)
        assert trainer.result() == len(steps)
        assert follower.result() > 0
    expected = rows(store)
    assert len(expected) > 5000
    assert rows(copy) == expected
    with rowmill.open(copy, memory="16MiB", read_only=True) as followed:
        assert int(followed.attachment("rollbacks") or 0) <= len(steps)


def events(folder: Path, since: int | None = None) -> list[rowmill.FeedEvent]:
    return list(rowmill.ChangeFeed(folder).follow(since, timeout_s=0))


def test_events_describe_all_changes(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    opened = rowmill.open(folder, memory="16MiB", feed="32MiB", feed_interval_s=60)
    with closing(opened) as store:
        table = store.table("words", dim=2, optimizer=SGD(lr=1.0))
        table.put([1, 2], [[1.0, 1.0], [2.0, 2.0]])
        store.checkpoint()
        before = time.time_ns()
        table.rmw([2], np.ones((1, 2), np.float32))
        table.delete([1])
        last = store.publish()
        assert last == store.stats()["feed_sequence"]
        assert store.stats()["feed_failure"] == ""
        # Deletes are published before rows in memory.
        copied, checkpoint, deleted, written = events(folder)
        assert isinstance(copied, rowmill.FeedRows)
        assert (sorted(copied.ids), copied.sequence, copied.step) == ([1, 2], 0, 0)
        assert isinstance(checkpoint, rowmill.FeedCheckpoint)
        assert checkpoint.epoch == 1
        assert isinstance(deleted, rowmill.FeedDeletes)
        assert (deleted.table, deleted.ids.tolist()) == ("words", [1])
        assert isinstance(written, rowmill.FeedRows)
        assert (written.ids.tolist(), written.weights.tolist()) == ([2], [[1.0, 1.0]])
        assert (written.sequence, written.step) == (last, 1)
        assert before <= written.published_ns <= time.time_ns()
        assert events(folder, deleted.sequence)[0].sequence == written.sequence
        assert events(folder, last) == []
    # The changes after checkpoint 1 were not saved, so the next opening publishes a rollback.
    with rowmill.open(folder, memory="16MiB", feed="32MiB") as store:
        rollback, restored, again = events(folder, last)
        assert isinstance(rollback, rowmill.FeedRollback)
        assert (rollback.to, rollback.epoch) == (checkpoint.sequence, 1)
        assert isinstance(restored, rowmill.FeedRows)
        assert sorted(restored.ids.tolist()) == [1, 2]
        assert sorted(restored.weights[:, 0].tolist()) == [1.0, 2.0]
        assert isinstance(again, rowmill.FeedCheckpoint)


def test_errors_of_stores_that_cannot_be_followed(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with pytest.raises(errors.StoreMissing):
        events(folder)
    with rowmill.open(folder, memory="16MiB") as store:
        with pytest.raises(errors.FeedMissing, match="open the store for writing with a feed"):
            store.publish()
        with pytest.raises(errors.FeedMissing):
            events(folder)
    with rowmill.open(folder, memory="16MiB", feed="32MiB"):
        with pytest.raises(errors.FeedGap, match="start again with a copy"):
            events(folder, 2**40)
        with pytest.raises(errors.InvalidInput, match="poll_s"):
            next(rowmill.ChangeFeed(folder).follow(poll_s=0))
    with pytest.raises(errors.InvalidInput, match="feed must be at least"):
        rowmill.open(folder, memory="16MiB", feed="1MiB")
    with pytest.raises(errors.InvalidInput, match="feed_interval_s"):
        rowmill.open(folder, memory="16MiB", feed="32MiB", feed_interval_s=0)


def test_the_command_prints_counts_and_lag(tmp_path: Path) -> None:
    with rowmill.open(tmp_path / "s", memory="16MiB", feed="32MiB") as store:
        table = store.table("words", dim=2, optimizer=SGD(lr=1.0))
        table.put([1, 2], [[1.0, 1.0], [2.0, 2.0]])
        store.checkpoint()
        table.delete([1])
        last = store.publish()
        done = subprocess.run(
            [
                warm_python(),
                "-m",
                "rowmill",
                "follow",
                str(tmp_path / "s"),
                "--seconds",
                "0",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "checkpoint 1\n" in done.stdout
    assert f"event {last}: 2 rows, 1 deletes; lag " in done.stdout


def test_openings_that_publish_nothing_do_not_hide_later_events(tmp_path: Path) -> None:
    """Each opening begins a segment at a random number. Followers took the one with the largest number, of any opening."""

    def opened() -> rowmill.Store:
        return rowmill.open(
            tmp_path / "store", memory="16MiB", feed="32MiB", feed_interval_s=1000.0
        )

    with closing(opened()) as store:
        table = store.table("t", dim=1, optimizer=SGD(lr=1.0))
        table.put([1], np.ones((1, 1), np.float32))
        store.checkpoint()
    feed = rowmill.ChangeFeed(tmp_path / "store")
    *_, last = feed.follow(timeout_s=0)
    for _ in range(8):
        opened().close()
    with closing(opened()) as store:
        store.open_table("t").put([2], np.ones((1, 1), np.float32))
        store.publish()
        (event,) = feed.follow(last.sequence, timeout_s=0)
    assert isinstance(event, rowmill.FeedRows)
    assert event.ids.tolist() == [2]
