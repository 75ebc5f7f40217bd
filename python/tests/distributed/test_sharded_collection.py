"""Training on many ranks gives the same results as training on one.

What could break: a gradient is counted twice, scaled by the number of ranks, or lost when two ranks look up one row; two ranks
own a row; batches do not divide evenly; ranks have no samples; there are more ranks than tables; strategies differ in ids;
ranks wait for a rank with invalid input. Ranks are processes over gloo. The tables have three dims and four specs; features
use means, padding, a shared table and 64-bit ids. Sums over ranks round in another order than sums over a batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rowmill.distributed import STRATEGIES

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes

STEPS = 200


def rows_of(
    results: list[dict[str, Any]], replicated: tuple[str, ...] = ()
) -> dict[tuple[str, int], list[float]]:
    """The rows of all ranks; fails if two ranks have the same row, or differ in the rows of a replicated table."""
    rows: dict[tuple[str, int], list[float]] = {}
    for result in results:
        for table, (ids, values) in result["rows"].items():
            if table in replicated:
                assert (ids, values) == tuple(results[0]["rows"][table]), "copies differ"
                rows |= {(table, id_): row for id_, row in zip(ids, values, strict=True)}
                continue
            for id_, row in zip(ids, values, strict=True):
                assert (table, id_) not in rows, "two ranks have a row"
                rows[table, id_] = row
    return rows


@pytest.fixture(scope="module")
def alone(processes: Processes, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """200 steps of an `EmbeddingCollection` in one process, without any exchange."""
    return processes.run("alone", tmp_path_factory.mktemp("alone"), count=1, steps=STEPS)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_training_equals_training_on_one_rank(
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


PLACEMENTS = {
    "pooled": "pooled",
    "whole": "whole",
    "mixed": "word=pooled,tag=whole:0,user=pooled,shop=rows",
    "replicated": "replicated",
    "all kinds": "rows,user=replicated,word=pooled,tag=whole,colour=replicated",
}
REPLICATED = {
    "replicated": ("user", "item", "shop", "word", "tag", "colour"),
    "rows,user=replicated,word=pooled,tag=whole,colour=replicated": ("user", "colour"),
}


@pytest.mark.parametrize(
    ("count", "placement"),
    [
        pytest.param(
            count,
            placement,
            id=f"{count}-{name}",
            # Many ranks share two cores.
            marks=pytest.mark.long if count > 2 and name != "all kinds" else (),
        )
        for count in (1, 2, 3, 4)
        for name, placement in PLACEMENTS.items()
    ],
)
def test_every_placement_trains_as_one_rank_does(
    processes: Processes, tmp_path: Path, alone: dict[str, Any], count: int, placement: str
) -> None:
    of = {"steps": STEPS, "placement": placement}
    results = processes.run("train", tmp_path, count=count, **of)
    for result in results:
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["weights"] == results[0]["weights"]
    rows, wanted = rows_of(results, REPLICATED.get(placement, ())), rows_of([alone])
    assert rows.keys() == wanted.keys()
    for key, row in rows.items():
        assert row == pytest.approx(wanted[key], abs=1e-4), key
    if placement == "whole":
        for number, name in enumerate(("user", "item", "shop", "word", "tag", "colour")):
            for rank, result in enumerate(results):
                assert bool(result["rows"][name][0]) == (rank == number % count), (name, rank)
    # One round per leg and step, whatever the mix.
    rounds = {"counts": 2 * (STEPS + 1), "keys": STEPS + 1, "rows": STEPS + 1, "gradients": STEPS}
    assert results[0]["rounds"] == rounds


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(placement, id=name, marks=() if name == "all kinds" else pytest.mark.long)
        for name, placement in PLACEMENTS.items()
    ],
)
def test_placements_give_equal_bits_with_every_strategy_chunk_and_pipeline(
    processes: Processes, tmp_path: Path, placement: str
) -> None:
    of: dict[str, Any] = {"count": 3, "steps": 20, "placement": placement}
    whole = processes.run("train", tmp_path / "whole", **of)
    others: dict[str, dict[str, Any]] = {
        "fused": {"strategy": "fused"},
        "per-category": {"strategy": "per-category"},
        "tiny chunks": {"chunk_bytes_max": 1},
        "some chunks": {"chunk_bytes_max": 1000},
        "ahead": {"pipeline": {"depth": 2, "in_flight": 2}},
    }
    for name, settings in others.items():
        results = processes.run("train", tmp_path / name, **of, **settings)
        for got, wanted in zip(results, whole, strict=True):
            for what in ("losses", "rows", "weights", "evaluated"):
                assert got[what] == wanted[what], (name, what)
            for leg in ("rows", "gradients"):
                assert got["bytes"][leg] == wanted["bytes"][leg], (name, leg)
    narrow = processes.run("train", tmp_path / "bf16", **of, rows_on_wire="bf16")
    for leg in ("rows", "gradients"):
        assert 2 * narrow[0]["bytes"][leg] == whole[0]["bytes"][leg]
    assert narrow[0]["losses"] == pytest.approx(whole[0]["losses"], rel=1e-2)
    rows_of(narrow, REPLICATED.get(placement, ()))
    if placement in REPLICATED:  # Which rules of eviction and admission do not allow.
        return
    rules = {"steps": 40, "rules": True}
    one = processes.run("alone", tmp_path / "one", count=1, **rules)[0]
    results = processes.run("train", tmp_path / "rules", count=3, placement=placement, **rules)
    for name, wanted in one["counts"].items():
        for what in ("births", "evicted"):
            counts = [result["counts"][name][what] for result in results]
            assert sum(counts) == wanted[what], (name, what)
        assert {result["counts"][name]["steps"] for result in results} == {wanted["steps"]}


def test_replicated_tables_send_gradients_only(processes: Processes, tmp_path: Path) -> None:
    of = {"tables": 2, "dim": 16, "ids": 4, "samples": 32}
    for result in processes.run("bags", tmp_path, count=3, placement="replicated", **of):
        # Ids of 2^40 repeat hardly ever, so all are distinct.
        distinct = 2 * 4 * 32
        assert result["keys"] == 2 * 8 * distinct
        assert result["rows"] == 0
        assert result["gradients"] == 2 * 4 * 16 * distinct


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("placement", ["pooled", "whole"])
def test_bytes_of_bags_pooled_at_owners_match_the_formula(
    processes: Processes, tmp_path: Path, placement: str, count: int
) -> None:
    tables, dim, ids, samples = 6, 64, 50, 64
    of = {"tables": tables, "dim": dim, "ids": ids, "samples": samples}
    results = processes.run("bags", tmp_path, count=count, placement=placement, **of)
    sent = {
        leg: sum(result[leg] for result in results) / count for leg in ("keys", "rows", "gradients")
    }
    others = (count - 1) / count if placement == "whole" else count - 1
    vectors = 4 * tables * dim * samples * others
    assert sent["rows"] == sent["gradients"] == pytest.approx(vectors, rel=0.05)
    asked = 8 * tables * ids * samples * (count - 1) / count
    # The lengths of bags, in four bytes each, come on top of the formula.
    lengths = 4 * tables * samples * others
    assert sent["keys"] - lengths == pytest.approx(asked, rel=0.05)
    assert sent["keys"] + sent["rows"] == pytest.approx(asked + vectors, rel=0.05)


def test_weights_of_bags_pooled_at_owners_equal_those_of_rows(
    processes: Processes, tmp_path: Path
) -> None:
    for result in processes.run("placed_weights", tmp_path, count=3):
        for placement in ("pooled", "whole", "replicated", "mixed"):
            for got, wanted in zip(result[placement], result["rows"], strict=True):
                assert got == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        assert result["refused"].startswith(
            'rank 0: weights of ids get gradients only with placement "rows" or "replicated", but table '
            "'user' of feature 'user' has 'pooled'"
        )


def test_bfloat16_outputs_equal_those_of_one_rank(processes: Processes, tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    of = {"steps": 20, "output": "bfloat16"}
    wanted = processes.run("alone", folder, count=1, **of)[0]
    results = processes.run("train", tmp_path, count=2, **of)
    for result in results:
        assert result["losses"] == pytest.approx(wanted["losses"], rel=1e-4)
        evaluated = torch.tensor(result["evaluated"])
        assert torch.equal(evaluated.bfloat16().float(), evaluated)
    rows, of_one = rows_of(results), rows_of([wanted])
    for key, row in rows.items():
        assert row == pytest.approx(of_one[key], abs=1e-3), key


@pytest.mark.parametrize("rows_on_wire", ["fp32", "bf16"])
def test_strategies_are_bit_identical(
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
    # Rounds of a step: counts with the status, then one per lane (1 lane, 4 groups or 6 categories). There is
    # one more forward, in evaluation.
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
    # source-hash sends categories too, at half the bytes of ids; its counts are per group instead of per category.
    hashed = results["source-hash"][0]["bytes"]
    assert hashed["keys"] == 1.5 * packed[0]["bytes"]["keys"]
    words = {"packed": 2 + 6, "source-hash": 2 + 4}
    for strategy, of_rank in words.items():
        assert results[strategy][0]["bytes"]["counts"] == 2 * 8 * (of_rank + 1) * forwards


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("strategy", "rows_on_wire"), [("packed", "fp32"), ("packed", "bf16"), ("fused", "fp32")]
)
def test_the_size_of_chunks_changes_no_bit(
    processes: Processes, tmp_path: Path, count: int, strategy: str, rows_on_wire: str
) -> None:
    # Some batches have one sample, so ranks have none; every third step has a category without ids.
    results = {
        size: processes.run(
            "train",
            tmp_path / str(size),
            count=count,
            steps=20,
            strategy=strategy,
            rows_on_wire=rows_on_wire,
            chunk_bytes_max=size,
        )
        for size in (1, 1000, "1GiB")
    }
    for size in (1, 1000):
        for got, whole in zip(results[size], results["1GiB"], strict=True):
            for what in ("losses", "rows", "weights", "evaluated"):
                assert got[what] == whole[what], (size, what)
            for leg in ("keys", "rows", "gradients"):
                assert got["bytes"][leg] == whole["bytes"][leg]
            # If a rank's messages exceed its share of a chunk, all ranks exchange the sizes of 6 categories.
            told = got["rounds"]["counts"] - whole["rounds"]["counts"]
            assert got["bytes"]["counts"] - whole["bytes"]["counts"] == told * 6 * 8 * (count - 1)
            assert got["rounds"]["keys"] == whole["rounds"]["keys"]
            assert 0 < told <= 21
    for tiny, some, whole in zip(*results.values(), strict=True):
        for leg in ("rows", "gradients"):
            assert whole["rounds"][leg] <= some["rounds"][leg] <= tiny["rounds"][leg]
            assert whole["rounds"][leg] < tiny["rounds"][leg]
            # A chunk holds at least one category; a category without ids is merged into another chunk.
            assert tiny["rounds"][leg] <= 6 * (21 if leg == "rows" else 20)


def test_message_buffers_hold_at_most_two_chunks(processes: Processes, tmp_path: Path) -> None:
    whole, cut = (
        processes.run("held_by_messages", tmp_path / size, count=2, chunk_bytes_max=size)
        for size in ("1GiB", "100KiB")
    )
    for one, other in zip(whole, cut, strict=True):
        assert one["rounds"] == 1
        assert other["rounds"] > 5
        assert other["pooled"] == one["pooled"]
        assert not one["alive"], (
            "a step must free its requests and gradients without the garbage collector"
        )
        assert not other["alive"]
        for leg in ("rows out", "rows in", "gradients out", "gradients in"):
            # Buffers are allocated with 1/4 extra.
            assert 0 < other["bytes"][leg] <= 2 * 1.25 * 100 * 1024 < one["bytes"][leg], leg


def test_with_chunks_all_ranks_name_a_rank_that_cannot_read_its_rows(
    processes: Processes, tmp_path: Path
) -> None:
    settings = {"what": "closed", "chunk_bytes_max": 1, "placement": "user=pooled,item=whole:2"}
    for result in processes.run("wrong", tmp_path, count=3, **settings):
        assert result["error"] == "ExchangeFailed"
        assert result["message"].startswith("rank 2: ")


def test_bf16_halves_the_bytes_of_rows_in_messages(processes: Processes, tmp_path: Path) -> None:
    narrow, wide = (
        processes.run("train", tmp_path / wire, count=2, steps=20, rows_on_wire=wire)
        for wire in ("bf16", "fp32")
    )
    for leg in ("rows", "gradients"):
        assert 2 * narrow[0]["bytes"][leg] == wide[0]["bytes"][leg]
    assert narrow[0]["losses"] != wide[0]["losses"]
    assert narrow[0]["losses"] == pytest.approx(wide[0]["losses"], rel=1e-2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_id_of_all_ranks_gets_the_sum_of_their_gradients(
    processes: Processes, tmp_path: Path, strategy: str
) -> None:
    # Three lookups on each rank, with gradients 1, 2 and 3: one update with their sum.
    results = processes.run("shared_id", tmp_path, count=3, strategy=strategy)
    assert sorted(result["has"] for result in results) == [False, False, True]
    for result in results:
        assert result["row"] == ([-18.0, -18.0] if result["has"] else [0.0, 0.0])


def test_admission_and_eviction_equal_those_of_one_store(
    processes: Processes, tmp_path: Path
) -> None:
    steps = 40
    alone = processes.run("alone", tmp_path / "1", count=1, steps=steps, rules=True)[0]
    results = processes.run("train", tmp_path / "3", count=3, steps=steps, rules=True)
    for result in results:
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert rows_of(results).keys() == rows_of([alone]).keys()
    for name, wanted in alone["counts"].items():
        counts = [result["counts"][name] for result in results]
        for what in ("births", "evicted"):
            assert sum(count[what] for count in counts) == wanted[what], (name, what)
            assert wanted[what] > 0 or name == "colour", (name, what)
        assert {count["steps"] for count in counts} == {wanted["steps"]}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_owners_count_requests_per_id(processes: Processes, tmp_path: Path, strategy: str) -> None:
    # In table "a", every rank looks up one shared id and one id of its own; in "b", one shared id.
    results = processes.run("requests", tmp_path, count=3, strategy=strategy)
    for name, requests in (("a", 3 * 400 * 2), ("b", 3 * 400)):
        assert sum(result["counts"][name]["accesses"] for result in results) == requests
    hottest = [result["hottest"] for result in results]
    of_a = max((most for one in hottest for most in one["a"]), key=lambda pair: pair[1])
    of_b = [most for one in hottest for most in one["b"]]
    # The count is an estimate, from 1 of 251 requests; the id is exact.
    assert of_a[0] == 2**63 - 1
    assert 600 <= of_a[1] <= 1800
    assert [id_ for id_, _ in of_b] == [-7]
    assert 600 <= of_b[0][1] <= 1800


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "packed"}, {"strategy": "per-category"}, {"chunk_bytes_max": 500}],
    ids=str,
)
def test_gradients_of_id_weights_equal_those_of_one_rank(
    processes: Processes, tmp_path: Path, settings: dict[str, Any]
) -> None:
    for result in processes.run("weighted", tmp_path, count=3, **settings):
        for sharded, alone in zip(result["sharded"], result["alone"], strict=True):
            for got, wanted in zip(sharded, alone, strict=True):
                assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shared", [False, True])
def test_rows_of_another_model_are_read_only(
    processes: Processes, tmp_path: Path, strategy: str, shared: bool
) -> None:
    for result in processes.run("external", tmp_path, count=2, strategy=strategy, shared=shared):
        assert result == {"equal": [True] * 5, "steps": 5, "theirs": 40}


# Written by as many ranks; by another number; a table whole on the last rank; one store, of which the last rank has a later
# checkpoint.
@pytest.mark.parametrize(
    ("written_by", "last", "is_refused"),
    [(2, 0, False), (3, 0, True), (0, 3000, True), (1, 300, False)],
)
def test_rows_of_another_model_that_no_rank_would_find_are_refused(
    processes: Processes, tmp_path: Path, written_by: int, last: int, is_refused: bool
) -> None:
    results = processes.run(
        "external_elsewhere", tmp_path, count=2, written_by=written_by, last=last
    )
    first = results[0]["message"]
    if not is_refused:
        assert not first
    else:
        assert re.search(
            r"row \d+ of the read-only table 'theirs' is in the store of rank \d,", first
        )
        assert "open one store on all ranks, or the stores of a run on 2 ranks" in first
    assert all(result["message"] == first for result in results)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "optimizer",
            "ranks disagree on the collection, the optimizer of table 'colour2': rank 0 has .*0.1.*, rank 2 has "
            ".*0.3",
        ),
        (
            "dim",
            "ranks disagree on the collection, the dim of table 'colour2': rank 0 has 4, rank 2 has 8",
        ),
        (
            "made",
            "ranks disagree on the collection, the creation number of table 'one': rank 0 has 6, rank "
            "2 has 7",
        ),
        (
            "order",
            "ranks disagree on the collection, feature 0: rank 0 has .*'user'.*, rank 2 has .*'colour'",
        ),
        (
            "strategy",
            "ranks disagree on the collection, the strategy: rank 0 has 'packed', rank 2 has 'fused'",
        ),
        (
            "chunk",
            "ranks disagree on the collection, chunk_bytes_max: rank 0 has 67108864, rank 2 has 1000",
        ),
        (
            "placement",
            "ranks disagree on the collection, the placement of table 'user': rank 0 has 'auto', rank 2 has 'pooled'",
        ),
        (
            "placement kind",
            "rank 2: placement of table 'user' must be auto, rows, pooled, whole, whole:RANK or replicated, got 'split'",
        ),
        (
            "placement rank",
            "rank 2: placement of table 'user' must name a rank below 3, the number of ranks, got 'whole:3'",
        ),
        (
            "placement rule",
            "rank 0: placement of table 'user' must not be \"replicated\", because the table has an eviction or admission",
        ),
        (
            "placement table",
            "rank 2: placement names table 'usr', which does not exist: use one of user, item, shop",
        ),
        ("no chunk", 'rank 2: chunk_bytes_max must be > 0, got 0: give a size such as "16MiB"'),
        (
            "chunk of words",
            "rank 2: chunk_bytes_max must be a number of bytes or a size such as \"2GiB\", got 'many'",
        ),
        ("constructor", "rank 2: features must have distinct names"),
        ("category", r"rank 2: .* lacks \['colour'\] and has unknown \['flavour'\]"),
        ("offsets", "rank 2: offsets must rise from 0 to the number of ids"),
        ("falling", "rank 2: offsets must rise from 0 to the number of ids .* not ascending"),
        (
            "range",
            r"rank 2: ids of feature 'shop' must be in \[0, 50\), the range of table 'shop', got 50",
        ),
        ("none", "rank 2: a batch must be a RaggedBatch, got NoneType"),
        ("mode", "all ranks must train or none: in forward 1 rank 0 trains and rank 2 evaluates"),
    ],
)
def test_all_ranks_raise_an_input_error_of_one_rank(
    processes: Processes, tmp_path: Path, what: str, message: str
) -> None:
    results = processes.run("wrong", tmp_path, count=3, what=what)
    first = results[0]["message"]
    assert re.match(message, first), first
    for result in results:
        assert (result["error"], result["message"]) == ("InvalidInput", first)
        assert result["s"] < 20
        assert result["after"] == (
            [1.0] if what in ("category", "offsets", "falling", "range", "none", "mode") else []
        )


def test_all_ranks_name_a_rank_that_cannot_read_its_rows(
    processes: Processes, tmp_path: Path
) -> None:
    results = processes.run("wrong", tmp_path, count=3, what="closed")
    for result in results:
        assert result["error"] == "ExchangeFailed"
        assert result["message"].startswith("rank 2: ")
        assert result["message"] == results[0]["message"]


def test_a_missing_rank_is_an_error_after_the_timeout(processes: Processes, tmp_path: Path) -> None:
    results = processes.run("silent", tmp_path, count=2, timeout_s=2.0)
    assert [result["error"] for result in results] == ["RankLost", None]
    assert results[0]["message"] == (
        "rank 0 in the plan of placements got no answer from rank 1, which ended, hangs, or makes no more calls; start all ranks again"
    )
