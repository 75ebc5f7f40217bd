"""Plans of placements: what the planner chooses, and that ranks come to one plan.

What could break: bytes differ from those that decision 0031 states; equal loads give different plans; a table is given to a rank
without room; whole tables make a step longer than rows would; ranks plan from their own batches and disagree. Loads are random,
with printed seeds; the last tests run two processes, whose messages must have the planned bytes.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from rowmill.distributed import PlacementPlan, Room, Speeds, TableLoad, plan_placements
from rowmill.distributed.cost import bytes_one_way
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from python.tests.distributed.conftest import Processes
    from rowmill.distributed import PlacementKind

SEEDS = range(60)


def small(name: str, rows: int | None = None, row_bytes: int = 0) -> TableLoad:
    """A table of DLRM Small: 50 ids per bag of 1,024 samples."""
    return TableLoad(name, 64, 1024, 51_200, 27_000, rows=rows, row_bytes=row_bytes)


def single(name: str) -> TableLoad:
    """A table with one id per bag, as in MLPerf's DLRM."""
    return TableLoad(name, dim=128, bags=2048, ids=2048, distinct=400)


def drawn(seed: int) -> tuple[list[TableLoad], int]:
    """Random tables, and a number of ranks."""
    draw = random.Random(seed)
    loads: list[TableLoad] = []
    for number in range(draw.randint(1, 12)):
        bags = draw.choice([64, 512, 2048])
        ids = bags * draw.choice([1, 3, 20, 100])
        distinct = max(1, round(ids * draw.random()))
        loads.append(
            TableLoad(
                f"t{number}",
                draw.choice([4, 16, 64, 256]),
                bags,
                ids,
                distinct,
                rows=draw.randint(1, 1_000_000),
                row_bytes=draw.choice([64, 512]),
                index_bytes=24,
            )
        )
    return loads, draw.randint(1, 6)


def taken(
    plan: PlacementPlan, loads: list[TableLoad], ranks: int, rank: int
) -> tuple[float, float]:
    """Bytes of index and disk on a rank, added anew."""
    index = disk = 0.0
    for load, choice in zip(loads, plan.choices, strict=True):
        placement, rows = choice.placement, load.rows or 0
        share = rows / ranks if placement.kind != "whole" else rows * (placement.rank == rank)
        index, disk = index + share * load.index_bytes, disk + share * load.row_bytes
    return index, disk


def test_bytes_are_those_of_the_formulas() -> None:
    load = small("t")
    for ranks in (2, 3, 8):
        others = ranks - 1
        ids = 8 * 51_200 * others / ranks
        vectors = 4 * 64 * 1024
        rows = 27_000 * others / ranks
        formulas: tuple[tuple[PlacementKind, tuple[float, float]], ...] = (
            ("whole", (ids, vectors * others / ranks)),
            ("pooled", (ids, vectors * others)),
            ("rows", (8 * rows, 4 * 64 * rows)),
            ("replicated", (8 * 27_000 * others, 0)),
        )
        for kind, wanted in formulas:
            assert bytes_one_way(load, kind, ranks) == pytest.approx(wanted)


def test_long_bags_are_whole_on_all_ranks_by_turns_and_single_ids_stay_rows() -> None:
    for ranks in (2, 4):
        tables = [small(f"long {n}") for n in range(8)]
        plan = plan_placements([*tables, single("single")], ranks)
        of = [plan.placement[table.name] for table in tables]
        assert sorted(of) == sorted(f"whole:{n % ranks}" for n in range(8))
        assert plan.placement["single"] == "rows"
        assert (
            plan.seconds
            < plan_placements([*tables, single("single")], ranks, fixed="rows").seconds / 2
        )


def test_one_table_that_would_bound_the_step_is_pooled() -> None:
    plan = plan_placements([small("t")], 2)
    assert plan.placement == {"t": "pooled"}
    assert plan.choices[0].reason == "a rank with the whole table would bound the step"
    assert plan.seconds < plan_placements([small("t")], 2, fixed="whole").seconds


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_never_slower_than_one_placement_for_all_tables(seed: int) -> None:
    loads, ranks = drawn(seed)
    plan = plan_placements(loads, ranks)
    rows, pooled = (
        plan_placements(loads, ranks, fixed=kind).seconds for kind in ("rows", "pooled")
    )
    assert plan.seconds <= rows * (1 + 1e-9), f"seed {seed}"
    # Tables keep `rows` if they gain less than a tenth by `pooled`; one rank sends nothing in either case.
    assert ranks == 1 or plan.seconds <= pooled / 0.9 * (1 + 1e-9), f"seed {seed}"
    # What the planner says of its own choice is what the choice costs when it is fixed.
    assert plan.seconds == pytest.approx(
        plan_placements(loads, ranks, fixed=plan.placement).seconds
    ), f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_loads_give_equal_plans_in_any_order_of_calls(seed: int) -> None:
    loads, ranks = drawn(seed)
    first = plan_placements(loads, ranks)
    plan_placements(drawn(seed + 1)[0], 3)
    assert plan_placements(loads, ranks) == first, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rank_gets_more_than_its_memory_and_disk(seed: int) -> None:
    loads, ranks = drawn(seed)
    # A third more than an even share: too little for all whole tables that the planner would like on a rank.
    index = sum((load.rows or 0) * load.index_bytes for load in loads) / ranks * 1.3
    disk = sum((load.rows or 0) * load.row_bytes for load in loads) / ranks * 1.3
    rooms = [Room(round(index), round(disk))] * ranks
    plan = plan_placements(loads, ranks, rooms=rooms)
    for rank in range(ranks):
        used = taken(plan, loads, ranks, rank)
        assert used[0] <= index + 1, f"seed {seed}"
        assert used[1] <= disk + 1, f"seed {seed}"


def test_a_rank_without_room_keeps_no_whole_table() -> None:
    tables = [small(f"t{n}", rows=1000, row_bytes=512) for n in range(4)]
    disk = 4 * 1000 * 512 // 2
    little = Room(disk_bytes=disk)
    plan = plan_placements(tables, 2, rooms=[little, Room()])
    for rank, room in ((0, disk), (1, 10**9)):
        assert taken(plan, tables, 2, rank)[1] <= room
    with pytest.raises(
        InvalidInput, match=r"rank 0 has .* of disk, but its tables take .* with t0"
    ):
        plan_placements(
            tables, 2, fixed=dict.fromkeys(["t0", "t1", "t2"], "whole:0"), rooms=[little, Room()]
        )


def test_fixed_placements_stay_and_others_are_chosen() -> None:
    tables = [small("a"), small("b"), small("c")]
    plan = plan_placements(tables, 2, fixed={"b": "replicated", "c": "rows"})
    assert (plan.placement["b"], plan.placement["c"]) == ("replicated", "rows")
    assert plan.choices[1].reason == "fixed by hand"
    assert plan.placement["a"] != "rows"
    assert plan_placements(tables, 2, fixed="b=replicated,c=rows") == plan
    assert "replicated" in str(plan).splitlines()[2]


def test_tables_that_cannot_be_pooled_or_moved_are_not() -> None:
    tables = [small(f"t{n}") for n in range(2)]
    held = [TableLoad("held", 64, 1024, 51_200, 27_000, rows_only=True)]
    kept = [TableLoad(f"kept {n}", 64, 1024, 51_200, 27_000, moves=False) for n in range(2)]
    placement = plan_placements([*tables, *held, *kept], 2).placement
    assert placement["held"] == "rows"
    assert placement["kept 0"] == placement["kept 1"] == "pooled"
    assert placement["t0"].startswith("whole")


def test_invalid_arguments() -> None:
    with pytest.raises(InvalidInput, match="ranks must be >= 1, got 0"):
        plan_placements([small("t")], 0)
    with pytest.raises(InvalidInput, match=r"rooms must have one entry per rank \(2\), got 1"):
        plan_placements([small("t")], 2, rooms=[Room()])
    with pytest.raises(InvalidInput, match="link_bytes_per_s must be a number > 0, got 0"):
        Speeds(link_bytes_per_s=0)
    with pytest.raises(InvalidInput, match="distinct 5, ids 3"):
        TableLoad("t", 4, 1, 3, 5)
    with pytest.raises(InvalidInput, match="placement names table 'u', which does not exist"):
        plan_placements([small("t")], 2, fixed="u=rows")


def test_ranks_come_to_one_plan_and_send_its_bytes(processes: Processes, tmp_path: Path) -> None:
    results = processes.run("planned_bags", tmp_path, count=2, tables=4, dim=64, ids=50, samples=64)
    assert results[0]["placement"] == results[1]["placement"]
    assert sorted(results[0]["placement"].values()) == ["whole:0", "whole:0", "whole:1", "whole:1"]
    sent = sum(sum(result["sent"].values()) for result in results) / 2
    # Counts, status words and lengths of bags come on top.
    assert sent == pytest.approx(results[0]["bytes"], rel=0.05)
    for result in results:
        assert result["vectors"] == result["vectors_fixed"]
        assert result["refused"].startswith(
            "ranks disagree on the plan of placements, the fixed placements: rank 0 has 'rows', rank 1 has 'pooled'"
        )
        assert result["short"].startswith("rank 1 has 1 B of disk, but its tables take")
