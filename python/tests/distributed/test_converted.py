"""A model that `rowmill.convert` shards over ranks trains as plain torch does in one process.

What could break: weights of another rank than rank 0 are stored, a row is stored on the wrong rank or twice, a gradient is
counted twice or divided by the number of ranks, weights of ids or padding are lost, a resumed run copies weights over trained
rows, a rank with a wrong model or batch leaves the others waiting. Ranks draw different weights, and the optimizer is SGD on
both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from python.tests.distributed.converted import plain

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes

pytestmark = pytest.mark.slow

MIXED = "rows,words=whole,tags=pooled,visits=replicated"
STEPS = 20


def check(results: list[dict[str, Any]], begin: int, end: int) -> None:
    losses, last = plain(end)
    predicted: list[float] = last.numpy().tolist()
    for result in results:
        assert result["begin"] == begin
        assert result["losses"] == pytest.approx(losses[begin:], rel=1e-5)
    found = [value for result in results for value in result["predicted"]]
    assert found == pytest.approx(predicted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("placement", ["rows", "pooled", "whole", "replicated", MIXED])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_converted_model_trains_as_in_plain_torch(
    processes: Processes, tmp_path: Path, count: int, placement: str
) -> None:
    results = processes.run(
        "train_converted", tmp_path / "first", count=count, until=STEPS, placement=placement
    )
    check(results, 0, STEPS)
    for table, rows in {"words": 30, "tags": 20, "visits": 10}.items():
        copies = placement == "replicated" or (placement == MIXED and table == "visits")
        kept = [result["rows"][table] for result in results]
        assert kept == [rows] * count if copies else sum(kept) == rows


def test_it_resumes_on_other_numbers_of_ranks(processes: Processes, tmp_path: Path) -> None:
    begin = 0
    for count in (2, 3, 1, 4):
        placement = MIXED if begin == 0 else None
        results = processes.run(
            "train_converted",
            tmp_path / str(count),
            count=count,
            until=begin + 5,
            placement=placement,
        )
        check(results, begin, begin + 5)
        begin += 5


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("path", "rank 1: store must be an open store"),
        ("module", 'rank 1: words: mode="max" is not supported'),
        ("placement", "rank 1: placement names table 'wrds'"),
        ("size", "ranks disagree on the conversion"),
        ("id", "rank 1: ids of feature 'words' must be in [0, 30)"),
        ("offsets", "rank 1: input must be [B, L]"),
    ],
)
def test_an_error_of_one_rank_is_raised_on_all(
    processes: Processes, tmp_path: Path, what: str, says: str
) -> None:
    results = processes.run("wrong_conversion", tmp_path, count=2, timeout_s=20, what=what)
    for result in results:
        assert says in result["error"]
        assert result["plain"] == (what not in ("id", "offsets")), "the model must be unchanged"
