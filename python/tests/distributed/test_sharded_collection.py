"""Training on many ranks comes to what training on one does.

What could break: a gradient that counts once too often or is scaled by the number of ranks, one of two gradients of a row
that two ranks ask for, a row that two ranks own, batches that do not divide, ranks without samples, more ranks than tables,
a strategy that sees other ids than the rest, and ranks that wait for one that found its input wrong. Ranks are processes and
meet over gloo; what they train has three widths, four specs, means, padding, a table of two features, and ids of all 64
bits. Sums over ranks round in another order than sums over a batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from rowmill.distributed import STRATEGIES

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes

STEPS = 200


def rows_of(results: list[dict[str, Any]]) -> dict[tuple[str, int], list[float]]:
    """The rows of all ranks; one that two have fails."""
    rows: dict[tuple[str, int], list[float]] = {}
    for result in results:
        for table, (ids, values) in result["rows"].items():
            for id_, row in zip(ids, values, strict=True):
                assert (table, id_) not in rows, "two ranks have a row"
                rows[table, id_] = row
    return rows


@pytest.fixture(scope="module")
def alone(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """200 steps of an `EmbeddingCollection` in one process, without any exchange."""
    return processes.run("alone", tmp_path_factory.mktemp("alone"), count=1, steps=STEPS)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_training_is_that_of_one_rank(
    processes: Processes, tmp_path: Path, alone: dict[str, Any], count: int
) -> None:
    results = processes.run("train", tmp_path, count=count, steps=STEPS)
    for result in results:
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["weights"] == results[0]["weights"]
    rows, wanted = rows_of(results), rows_of([alone])
    assert rows.keys() == wanted.keys()
    for key, row in rows.items():
        assert row == pytest.approx(wanted[key], abs=1e-4), key
    if count > 1:
        assert all(any(ids for ids, _ in result["rows"].values()) for result in results)


@pytest.mark.parametrize("rows_on_wire", ["fp32", "bf16"])
def test_strategies_are_equal_to_the_bit(
    processes: Processes, tmp_path: Path, rows_on_wire: str
) -> None:
    steps, results = 20, {}
    for strategy in STRATEGIES:
        results[strategy] = processes.run(
            "train",
            tmp_path / strategy,
            count=3,
            steps=steps,
            strategy=strategy,
            rows_on_wire=rows_on_wire,
        )
    packed = results["packed"]
    for strategy in STRATEGIES:
        for one, other in zip(results[strategy], packed, strict=True):
            for what in ("losses", "rows", "weights", "evaluated"):
                assert one[what] == other[what], (strategy, what)
            assert one["bytes"]["rows"] == other["bytes"]["rows"]
            assert one["bytes"]["gradients"] == other["bytes"]["gradients"]
    # Rounds of a step: counts and the word that all is well, then lanes of 1, 4 groups, 6 categories; and
    # one more forward in evaluation.
    forwards = steps + 1
    for strategy, lanes, keys in [
        ("packed", 1, 1),
        ("fused", 4, 4),
        ("source-hash", 4, 8),
        ("per-category", 6, 6),
    ]:
        for result in results[strategy]:
            assert result["rounds"] == {
                "counts": 2 * forwards,
                "keys": keys * forwards,
                "rows": lanes * forwards,
                "gradients": lanes * steps,
            }
            assert result["rounds_evaluated"] == 2 + keys + lanes
    # The message of categories, half as wide as that of ids; the source's counts are of groups, not of categories.
    hashed = results["source-hash"][0]["bytes"]
    assert hashed["keys"] == 1.5 * packed[0]["bytes"]["keys"]
    words = {"packed": 2 + 6, "source-hash": 2 + 4}
    for strategy, of_rank in words.items():
        assert results[strategy][0]["bytes"]["counts"] == 2 * 8 * (of_rank + 1) * forwards


def test_rows_travel_at_half_the_bytes_as_bf16(processes: Processes, tmp_path: Path) -> None:
    narrow, wide = (
        processes.run("train", tmp_path / wire, count=2, steps=20, rows_on_wire=wire)
        for wire in ("bf16", "fp32")
    )
    for leg in ("rows", "gradients"):
        assert 2 * narrow[0]["bytes"][leg] == wide[0]["bytes"][leg]
    assert narrow[0]["losses"] != wide[0]["losses"]
    assert narrow[0]["losses"] == pytest.approx(wide[0]["losses"], rel=1e-2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_id_that_all_ranks_ask_for_gets_the_sum_of_their_gradients(
    processes: Processes, tmp_path: Path, strategy: str
) -> None:
    # Three lookups on each of the ranks, whose gradients are 1, 2 and 3: one update by their sum.
    results = processes.run("shared_id", tmp_path, count=3, strategy=strategy)
    assert sorted(result["has"] for result in results) == [False, False, True]
    for result in results:
        assert result["row"] == ([-18.0, -18.0] if result["has"] else [0.0, 0.0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "optimizer",
            "ranks disagree on the collection, table 'colour2': rank 0 has .*0.1.*, rank 2 has .*0.3",
        ),
        (
            "strategy",
            "ranks disagree on the collection, the strategy: rank 0 has 'packed', rank 2 has 'fused'",
        ),
        ("constructor", "rank 2: features must have distinct names"),
        ("category", r"rank 2: .* lacks \['colour'\], and nobody declared \['flavour'\]"),
        ("offsets", "rank 2: offsets must rise from 0 to the number of ids"),
        ("falling", "rank 2: offsets must rise from 0 to the number of ids .* with falls"),
        ("range", "rank 2: ids of 'shop' must be within 0..50 of table 'shop', got 50"),
        ("mode", "all ranks must train or none: .*'training', 'training', 'evaluation'"),
    ],
)
def test_bad_input_of_one_rank_is_raised_by_all(
    processes: Processes, tmp_path: Path, what: str, message: str
) -> None:
    results = processes.run("wrong", tmp_path, count=3, what=what)
    first = results[0]["message"]
    assert re.match(message, first), first
    for result in results:
        assert (result["error"], result["message"]) == ("InvalidInput", first)
        assert result["s"] < 20
        assert result["after"] == (
            [] if what in ("optimizer", "strategy", "constructor") else [1.0]
        )


def test_a_rank_that_cannot_read_its_rows_is_named_by_all(
    processes: Processes, tmp_path: Path
) -> None:
    results = processes.run("wrong", tmp_path, count=3, what="closed")
    for result in results:
        assert result["error"] == "ExchangeFailed"
        assert result["message"].startswith("rank 2: ")
        assert result["message"] == results[0]["message"]


def test_a_rank_that_never_comes_is_waited_for_so_long(
    processes: Processes, tmp_path: Path
) -> None:
    results = processes.run("silent", tmp_path, count=2, timeout_s=2.0)
    assert [result["error"] for result in results] == ["RuntimeError", None]
