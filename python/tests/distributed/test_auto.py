"""Placement "auto": planned from the first batches, kept in the manifest, fixed by hand.

What could break: equal runs plan differently, for example because a pipeline draws more batches; a resumed run plans anew and
looks for rows on other ranks; rows that are there move; one rank plans and others wait. Two processes; the disk of a rank that is
full is simulated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from python.tests.distributed.auto import NAMES

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes

SPREAD = {"t0": "whole:0", "t1": "whole:1", "t2": "whole:0", "t3": "whole:1", "single": "rows"}
POOLED = {**dict.fromkeys(NAMES, "pooled"), "single": "rows"}
ROWS = dict.fromkeys(NAMES, "rows")


@pytest.mark.slow
def test_first_batches_choose_placements_which_a_resumed_run_keeps(
    processes: Processes, tmp_path: Path
) -> None:
    results = processes.run("auto_placed", tmp_path, count=2)
    found = results[0]
    for depth in (0, 1, 3):
        unplaced, placements, losses = found[f"depth {depth}"]
        assert unplaced == list(NAMES)
        assert placements == SPREAD
        assert losses == found["depth 0"][2], "the depth of a pipeline must change no bit"
    assert found["second"] == SPREAD
    assert found["resumed"] == [[], SPREAD, found["after"]]

    by_hand = found["by hand"]
    assert (by_hand["t0"], by_hand["t1"]) == ("rows", "whole:1")
    assert by_hand["t3"] == "whole:0"
    assert found["in Python"]["t0"] == "pooled"
    assert found["in Python"]["t3"] == "whole:0"
    assert found["narrow"] == SPREAD
    assert found["other speeds"].startswith("ranks disagree on the collection, the speeds: ")
    assert found["written"]["t1"] == "pooled", "rows of a table that has some must not move"
    assert found["written"]["t3"].startswith("whole")
    for name in ("source-hash", "weighted", "cached"):
        assert found[name] == ROWS, name
    assert found["plain"] == POOLED, "without a manifest, rows must stay where a later run looks"
    empty, message, invalid, valid = found["late"]
    assert message.startswith("rank 1: a batch must be a RaggedBatch, got NoneType")
    assert empty == invalid == list(NAMES)
    assert valid == []
    for name in found:
        if not name.startswith(("depth", "after", "resumed")):
            assert results[1][name] == found[name], name


def test_a_rank_without_disk_gets_no_whole_table(processes: Processes, tmp_path: Path) -> None:
    results = processes.run("without_room", tmp_path, count=2)
    assert results[0] == results[1]
    # Two of the five tables are no more than its share of `rows` would be.
    assert list(results[0]["chosen"].values()).count("whole:1") <= 2
    assert results[0]["fixed"].startswith("rank 1 has ")
    assert "of disk, but its tables take" in results[0]["fixed"]
    assert "with t2 whole on it: give it more" in results[0]["fixed"]
