"""Messages of two process groups arrive as those of one.

What could break: a part goes to a wrong rank or place; the two ranks choose differently, and wait for ever; an empty part, or
a rank's part for itself, is lost; messages in flight at a time are mixed; a rank waits for ever for one that was killed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from python.tests.distributed.elastic import Run
from rowmill.distributed.both_ways import BYTES_MIN

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_part_arrives_in_its_place(processes: Processes, tmp_path: Path, count: int) -> None:
    for result in processes.run("all_to_all", tmp_path, count=count, most=1000):
        assert result == {"kinds": ["Work"], "wrong": []}


def test_two_ranks_send_large_messages_both_ways(processes: Processes, tmp_path: Path) -> None:
    for result in processes.run("all_to_all", tmp_path, count=2, most=BYTES_MIN):
        assert result == {"kinds": ["BothWays", "Work"], "wrong": []}


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_in_a_message_is_lost(tmp_path: Path, victim: int) -> None:
    run = Run("large_messages", tmp_path, count=2)
    run.await_steps(3)
    run.kill(victim)
    other = 1 - victim
    assert run.end()[other] == 1
    assert "rowmill.errors.RankLost: rank" in run.error(other)
