"""Training with prefetched batches gives the same results as without prefetch.

What could break: ids of one batch are paired with rows of another; collectives of two threads match each other; a row of a
synchronous table is read before its last update; a step is never applied; threads of different ranks deadlock when a loop ends
early; an error is raised on one rank only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes

pytestmark = pytest.mark.slow

STEPS = 30
SAME = ("losses", "rows", "weights", "evaluated")


@pytest.fixture(scope="module")
def in_time(
    processes: Processes, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, list[dict[str, Any]]]:
    """Results without a pipeline, by number of ranks."""
    folder = tmp_path_factory.mktemp("in-time")
    return {
        count: processes.run("train", folder / str(count), count=count, steps=STEPS)
        for count in (1, 2, 3)
    }


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("depth", "in_flight"), [(1, 1), (4, 1), (1, 2), (4, 3)])
def test_a_pipeline_at_bound_0_changes_no_bit(
    processes: Processes,
    tmp_path: Path,
    in_time: dict[int, list[dict[str, Any]]],
    count: int,
    depth: int,
    in_flight: int,
) -> None:
    results = processes.run(
        "train",
        tmp_path,
        count=count,
        steps=STEPS,
        pipeline={"depth": depth, "in_flight": in_flight},
    )
    for got, wanted in zip(results, in_time[count], strict=True):
        for what in SAME:
            assert got[what] == wanted[what], what
        # One extra message, which reports the end of the batches.
        assert got["rounds"] == wanted["rounds"] | {"counts": wanted["rounds"]["counts"] + 1}
        assert got["announced"] > 0 == wanted["announced"]
        assert not any(got["stale"][1:])


@pytest.mark.parametrize(("depth", "in_flight"), [(3, 1), (2, 3)])
def test_a_loop_may_end_early_and_start_again(
    processes: Processes,
    tmp_path: Path,
    in_time: dict[int, list[dict[str, Any]]],
    depth: int,
    in_flight: int,
) -> None:
    pipeline = {"depth": depth, "in_flight": in_flight}
    results = processes.run(
        "train", tmp_path, count=3, steps=STEPS, pipeline=pipeline, stops=[1, 7, STEPS - 1]
    )
    for got, wanted in zip(results, in_time[3], strict=True):
        for what in SAME:
            assert got[what] == wanted[what], what


def test_rows_are_read_ahead_as_far_as_their_bound_allows(
    processes: Processes, tmp_path: Path, in_time: dict[int, list[dict[str, Any]]]
) -> None:
    results = processes.run(
        "train",
        tmp_path,
        count=2,
        steps=STEPS,
        bound=2,
        pipeline={"depth": 3, "in_flight": 3},
    )
    for got, wanted in zip(results, in_time[2], strict=True):
        assert got["losses"] != wanted["losses"]
        assert got["losses"] == pytest.approx(wanted["losses"], rel=0.1)
        assert any(got["stale"][1:])


@pytest.mark.parametrize(("depth", "in_flight"), [(1, 1), (4, 1), (3, 2)])
@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("category", "InvalidInput", r"rank 2: .* lacks \['user'\] and has unknown"),
        ("raise", "ExchangeFailed", "rank 2: OSError: the file is gone"),
        ("end", "InvalidInput", "rank 2 has no more batches, but rank 0 has"),
        ("mode", "InvalidInput", "(rank 0: )?this batch was prepared for training"),
    ],
)
def test_all_ranks_raise_an_error_of_one_rank(
    processes: Processes,
    tmp_path: Path,
    what: str,
    error: str,
    message: str,
    depth: int,
    in_flight: int,
) -> None:
    results = processes.run(
        "wrong_ahead",
        tmp_path,
        count=3,
        what=what,
        pipeline={"depth": depth, "in_flight": in_flight},
    )
    for result in results:
        assert (result["error"], result["message"]) == (error, results[0]["message"])
        assert re.match(message, result["message"]), result["message"]
        assert result["seen"] == 3
        assert result["after"] == [1, 1, 1]


def test_all_ranks_name_a_rank_that_cannot_read_its_rows(
    processes: Processes, tmp_path: Path
) -> None:
    pipeline = {"depth": 2, "in_flight": 1}
    # If other ranks waited for its ids, the test's own limit would end it first.
    results = processes.run(
        "wrong_ahead", tmp_path, count=3, timeout_s=600, what="closed", pipeline=pipeline
    )
    for result in results:
        assert (result["error"], result["seen"]) == ("ExchangeFailed", 3)
        assert result["message"].startswith("rank 2: ")
        assert result["message"] == results[0]["message"]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_prefetched_evaluation_reads_the_same_rows(
    processes: Processes, tmp_path: Path, in_flight: int
) -> None:
    pipeline = {"depth": 2, "in_flight": in_flight}
    for result in processes.run("evaluated_ahead", tmp_path, count=2, pipeline=pipeline):
        assert (result["equal"], result["changed"]) == (True, False)
        assert result["refused"].startswith("this pipeline already runs: close()")


def test_ranks_agree_on_the_prefetch_depth(processes: Processes, tmp_path: Path) -> None:
    results = processes.run("unequal_pipelines", tmp_path, count=2)
    for result in results:
        assert result["message"] == (
            "ranks disagree on the pipeline, the depth: rank 0 has 2, rank 1 has 3; it must be equal on all ranks"
        )
