"""Cached rows are equal to the rows that their owners would send.

What could break: a cached row is stale after an update; a slot is reused before the last use of its row; the gradient of a
received row is written to a cached one; ids of two categories are confused; the cache exceeds its memory. Ranks share ids. One
table belongs to another model and is read-only, so its rows are cached in training too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from rowmill.distributed.row_cache import with_next

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from python.tests.distributed.conftest import Processes


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("cache", "settings"),
    [
        ({"ahead": 1}, {}),
        ({"ahead": 5}, {}),
        # Fits 2, 4 and 8 rows of dims 16, 8 and 4; in training, 12 rows of the read-only table.
        ({"ahead": 5, "memory": 3 * 2 * 64}, {}),
        ({"ahead": 3}, {"chunk_bytes_max": 200}),
        ({"ahead": 3, "memory": 3 * 2 * 64}, {"strategy": "fused", "rows_on_wire": "bf16"}),
        # Rows of tables with other placements are not cached.
        ({"ahead": 5}, {"placement": "rows,user=pooled,tag=whole,colour=replicated"}),
        ({"ahead": 5}, {"placement": "rows,user=replicated,tag=pooled", "chunk_bytes_max": 200}),
    ],
    ids=str,
)
def test_a_row_cache_changes_no_bit(
    processes: Processes,
    tmp_path: Path,
    count: int,
    cache: dict[str, Any],
    settings: dict[str, Any],
) -> None:
    results = processes.run("cached", tmp_path, count=count, cache=cache, **settings)
    for result in results:
        assert result["seen"]
        assert result["rows"]
        use = result["use"]
        assert 0 < use["hits"] < use["rows"]
        assert 16 * use["hits"] < use["bytes_saved"] < 64 * use["hits"]
    held_max = max(result["use"]["held_max"] for result in results)
    assert (held_max <= 2 + 4 + 8) == ("memory" in cache)
    for leg in ("keys", "rows", "gradients"):
        sent, with_cache = (
            sum(result[what][leg] for result in results) for what in ("bytes", "bytes_cached")
        )
        assert with_cache < sent or count == 1


def test_misuse_of_a_row_cache_is_refused(processes: Processes, tmp_path: Path) -> None:
    for result in processes.run("misused_cache", tmp_path, count=2):
        left_out, twice, trained = result["found"]
        assert "batch 4 of this run is looked up after batch 2" in left_out
        assert "batch 3 of this run is looked up after batch 3" in twice
        assert "rows were trained since this run of evaluation began" in trained


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ({"ahead": 0}, "ahead of the row cache must be a whole number from 1 to 63, got 0"),
        ({"memory": "much"}, "memory of the row cache must be a number of bytes or a size"),
        ({"device": "abacus"}, 'device of the row cache must be "cpu" or a GPU of this machine'),
    ],
)
def test_all_ranks_refuse_an_invalid_row_cache(
    processes: Processes, tmp_path: Path, cache: dict[str, Any], message: str
) -> None:
    for result in processes.run("wrong_cache", tmp_path, count=2, cache=cache):
        assert re.match(f"rank 1: {re.escape(message)}", result["message"]), result["message"]


def test_an_error_in_the_iterator_of_batches_is_raised_at_its_position() -> None:
    def batches() -> Iterator[int]:
        yield from range(3)
        raise OSError("the file is gone")

    found = with_next(batches(), 2)
    assert [next(found) for _ in range(3)] == [(0, [1, 2]), (1, [2]), (2, [])]
    with pytest.raises(OSError, match="the file is gone"):
        next(found)
