"""Ranks in different calls all raise the same error; so do ranks after one has ended.

What could break: ranks wait for each other until a timeout; messages of different calls match and end a process; an error
names no rank, or only some ranks raise it; a slow rank is reported as wrong; a process raises the error and does not end. The
timeout is ten minutes here, so no test passes because of it.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.distributed.elastic import Run
from python.tests.distributed.test_collectives import environment, oneccl
from python.tests.ports import free_port
from python.tests.warm import warm_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

__all__ = ["oneccl"]

PROGRAM = """
import os, sys, tempfile, time, torch
import torch.distributed as dist
import rowmill
from rowmill.distributed import Ranks, ShardedCollection
from rowmill.nn import Feature

dist.init_process_group(sys.argv[1])
if os.environ["RANK"] == "1":  # Rank 0, whose process holds the key-value store, learns the reason first.
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(3 * seconds)
try:
    ranks = Ranks(timeout_s=600)
    with tempfile.TemporaryDirectory() as folder, rowmill.open(f"{folder}/s", memory="16MiB") as store:
        table = store.table("t", dim=4, optimizer=rowmill.optim.SGD(lr=1.0))
        rows = ShardedCollection([Feature("f", table)], ranks=ranks)
        model = ranks.data_parallel(torch.nn.Linear(4, 1))
        for step in range(6):
            logits = model(rows(rowmill.RaggedBatch.from_lists({"f": [[step], [3]]})))
            if step == 3 and ranks.rank == 1:
                continue
            ranks.mean(logits.view(-1)).backward()
finally:
    dist.destroy_process_group()
"""

FIX = (
    "; make the same calls in the same order on every rank, for equally many batches, and in training a backward for "
    "each forward"
)


def last_lines(run: Run) -> list[str]:
    """The last line of standard error of every rank; all must have failed."""
    ended = run.end()
    assert ended == [1] * len(ended), (ended, [run.error(rank) for rank in range(len(ended))])
    return [run.error(rank).strip().splitlines()[-1] for rank in range(len(ended))]


def at(others: str, second: str) -> str:
    """The error that each of three ranks must raise."""
    where = f"rank 0 in {others}, rank 1 in {second}, rank 2 in {others}"
    return f"rowmill.errors.ExchangeFailed: ranks are in different calls: {where}{FIX}"


@pytest.mark.parametrize(
    ("settings", "others", "second"),
    [
        ({"how": "nothing"}, "mean 4", "forward 5"),
        ({"how": "backward"}, "the backward of forward 4", "total 4"),
        ({"how": "mean"}, "mean 4", "the backward of forward 4"),
        ({"how": "twice"}, "mean 4", "forward 5"),
        ({"how": "evaluation"}, "mean 4", "forward 5"),
        ({"how": "fewer"}, "forward 4", "total 4"),
        ({"how": "more"}, "total 9", "forward 9"),
        ({"how": "save"}, r"gather \d+", "forward 9"),
        ({"how": "second"}, "forward 4", "forward 1 of collection 2"),
        ({"how": "nothing", "depth": 2}, "mean 4", "the rows of forward 5 ahead"),
        ({"how": "fewer", "depth": 2}, "the rows of forward 4 ahead", "total 4"),
        ({"how": "nothing", "watched": True}, "mean 4 of step 3", "forward 5 of step 4"),
    ],
)
def test_all_ranks_raise_an_error_with_the_call_of_each(
    tmp_path: Path, settings: dict[str, Any], others: str, second: str
) -> None:
    said = last_lines(Run("apart", tmp_path, count=3, **settings))
    assert said == [said[0]] * 3
    assert re.fullmatch(at(others, second), said[0]), said[0]


def test_different_reductions_are_different_calls(tmp_path: Path) -> None:
    said = last_lines(Run("apart", tmp_path, count=3, how="total"))
    assert (
        said
        == [
            "rowmill.errors.ExchangeFailed: ranks are in different calls: of 3 ranks 2 take a mean and the others a total; make the "
            "same calls in the same order on every rank"
        ]
        * 3
    )


def test_a_slow_rank_is_not_an_error(tmp_path: Path) -> None:
    assert Run("apart", tmp_path, count=3, how="slow").results() == [{}] * 3


@pytest.mark.parametrize("how", ["input", "leaves"])
def test_the_other_ranks_name_a_rank_that_ended(tmp_path: Path, how: str) -> None:
    run = Run("apart", tmp_path, count=3, how=how)
    ended = run.end()
    assert ended == [1, how == "input", 1]
    said = [run.error(rank).strip().splitlines()[-1] for rank in (0, 2)]
    assert said[0] == said[1]
    assert re.fullmatch(
        r"rowmill.errors.RankLost: rank [02] in forward 4 got no answer from rank 1, which ended, hangs, or makes no more "
        "calls; start all ranks again",
        said[0],
    ), said[0]


def test_within_a_watch_a_rank_that_failed_need_not_end(tmp_path: Path) -> None:
    said = last_lines(Run("apart", tmp_path, count=3, how="input", watched=True))
    assert said[1].startswith("rowmill.errors.InvalidInput: offsets must have F * B + 1 entries")
    for rank in (0, 2):
        assert said[rank].startswith(
            "rowmill.errors.RankLost: rank 1 was lost in step 2: it failed: InvalidInput: offsets must have"
        )


@pytest.mark.parametrize("backend", ["gloo", "oneccl"])
def test_processes_end_although_their_collectives_never_do(
    request: pytest.FixtureRequest, backend: str
) -> None:
    environ = environment(request.getfixturevalue("oneccl")) if backend == "oneccl" else os.environ
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [warm_python(), "-c", PROGRAM, backend],
            env={**environ, **meeting, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=200)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, errors in zip(ranks, said, strict=True):
        assert rank.returncode == 1, errors
        assert f"ranks are in different calls: rank 0 in mean 4, rank 1 in forward 5{FIX}" in errors
