"""When a rank is lost, the other ranks end within seconds and report its number and step.

What could break: ranks wait for minutes in a collective; an error about sockets hides the lost rank; a secondary error names
the wrong rank; a rank that hangs is not detected; an error that all ranks raise is replaced by `RankLost`. Ranks are processes
and are killed.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from python.tests.distributed.elastic import Run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_other_ranks_name_a_killed_rank(tmp_path: Path, victim: int) -> None:
    run = Run("lose", tmp_path, count=3, how="kill", victim=victim)
    ended = run.end()
    for rank in range(3):
        if rank == victim:
            assert ended[rank] == -signal.SIGKILL
            continue
        assert ended[rank] == 1
        last = run.error(rank).strip().splitlines()[-1]
        assert last == (
            f"rowmill.errors.RankLost: rank {victim} was lost in step 7: it ended without a message; start all ranks "
            "again, and they resume from their last checkpoint"
        )


def test_a_rank_that_hangs_is_detected(tmp_path: Path) -> None:
    run = Run("lose", tmp_path, count=2, how="silence", victim=1)
    run.ranks[0].join(60)
    pid = run.ranks[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    # Its connections stay open, so the other rank cannot leave its collective.
    assert run.end()[0] == 70
    said = (
        "rank 0 ends: no message passed between ranks 0 and 1 for 1 s: the link between them is down, or one of them "
        "hangs (rank 1 was in step 7)"
    )
    assert said in run.error(0)


def test_a_rank_that_does_not_leave_a_collective_is_ended(tmp_path: Path) -> None:
    run = Run("lose", tmp_path, count=3, how="stuck", victim=1)
    assert run.end() == [70, -signal.SIGKILL, 70]
    for rank in (0, 2):
        said = f"rank {rank} ends: rank 1 was lost in step 7: it ended without a message"
        assert said in run.error(rank)


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    ("how", "error"), [("raise", "ValueError: a label is 3"), ("interrupt", "KeyboardInterrupt")]
)
def test_a_failed_rank_is_named_with_its_error(
    tmp_path: Path, victim: int, how: str, error: str
) -> None:
    run = Run("lose", tmp_path, count=2, how=how, victim=victim)
    assert run.end()[1 - victim] == 1
    assert run.error(victim).strip().endswith(error)
    said = f"RankLost: rank {victim} was lost in step 7: it failed: {error};"
    assert said in run.error(1 - victim)


def test_an_error_of_all_ranks_is_not_replaced(tmp_path: Path) -> None:
    run = Run("lose", tmp_path, count=3, how="together", victim=-1)
    assert run.end() == [1, 1, 1]
    for rank in range(3):
        assert run.error(rank).strip().endswith("InvalidInput: all ranks say so")


def test_a_run_without_a_lost_rank_ends_silently(tmp_path: Path) -> None:
    run = Run("lose", tmp_path, count=3, how="not at all", victim=-1)
    assert run.results() == [{}, {}, {}]


def test_a_rank_that_left_keeps_watching_until_all_have_left(tmp_path: Path) -> None:
    run = Run("lose", tmp_path, count=3, how="late", victim=1)
    assert run.end() == [0, -signal.SIGKILL, 70]
    said = "rank 2 ends: rank 1 was lost in step 99: it ended without a message"
    assert said in run.error(2)
