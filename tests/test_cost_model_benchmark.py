"""The arithmetic of benchmarks/cost_model, and its counts of bytes compared with a real step.

What could break: a fit that does not recover the values behind the data, or gives a negative time; messages between more
ranks with the cost of two; ranks that share cores but are modelled with their own; wrong byte counts. Speed is not
checked.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost_model import run as cost_model
from benchmarks.cost_model.model import (
    SMALL_BYTES,
    Curve,
    Kernels,
    Kind,
    Link,
    Load,
    Sends,
    Work,
    expected_distinct,
    fit_curve,
    fit_work,
    not_negative,
    of_cell,
    predict,
    scaling,
)
from benchmarks.exchange.cells import Cell

CELL = Cell(ranks=1, categories=6, dims=(4, 8), batch=64, zipf=1.05)
NOTHING = Curve(0.0)


def line(start_s: float, byte_s: float) -> Curve:
    return Curve(start_s, (1.0,), (start_s + byte_s,))


def test_a_curve_goes_through_the_measured_times() -> None:
    seconds = {16: 3e-4, 64: 9e-4, 4096: 2e-4, 1 << 14: 5e-4, 1 << 16: 4e-4, 1 << 20: 2e-3}
    curve = fit_curve(seconds)
    assert curve.of(0) == curve.start_s == 3e-4
    assert curve.of(1 << 13) == pytest.approx(4e-4)
    # A larger message that took less time is noise.
    assert curve.of(1 << 16) == pytest.approx(5e-4)
    assert curve.of(1 << 20) == pytest.approx(2e-3)
    # The last range extends beyond its end.
    slope = 1.5e-3 / ((1 << 20) - (1 << 16))
    assert curve.of(1 << 21) == pytest.approx(2e-3 + slope * (1 << 20))
    assert curve.of(1 << 20, 3) == pytest.approx(2e-3 + 2 * 3e-4)
    assert Curve(0.5).of(100, 2) == 1


def test_the_fit_minimizes_relative_errors() -> None:
    (level,) = not_negative([[1.0], [1.0]], [1.0, 100.0])
    # Minimizing absolute errors would give 50.5.
    assert level == pytest.approx((1 + 1 / 100) / (1 + 1 / 100**2))


def test_the_fit_of_work_recovers_times_and_none_is_negative() -> None:
    cells = cost_model.fitted("rows")
    works = [of_cell(cell).work["rows"] for cell in cells]
    seconds = (1e-3, 2e-5, 3e-9, 0.0, 5e-10, 2e-10)
    made = [sum(a * b for a, b in zip(seconds, work.values(), strict=True)) for work in works]
    assert fit_work(works, made) == pytest.approx(seconds, abs=1e-12)
    assert min(not_negative([[1, 0], [1, 1], [1, 2]], [3.0, 2.0, 1.0])) == 0


def test_messages_of_more_ranks() -> None:
    sends = Sends(to_all=(800.0,), to_each=(10.0,), sums=(400.0,))
    assert sends.leaving(4) == [600.0, 30.0]
    wire = Link(line(1.0, 0.01), NOTHING, line(2.0, 0.1), NOTHING)
    # An all-to-all pays the constant once for any number of ranks; the messages of a ring pay it one after the other.
    two = (1 + 4) + (1 + 0.1) + (2 + 40)
    four = (1 + 6) + (1 + 0.3) + (2 * 3 + 0.1 * 400 * 2 * 3 / 4)
    assert all_of(wire, sends, 2, 2) == pytest.approx(two)
    assert all_of(wire, sends, 4, 2) == pytest.approx(four)
    # The cores process a message to each other rank, for all ranks that share them.
    carried = replace(wire, exchange_cpu=line(50.0, 0.0))
    assert all_of(carried, sends, 2, 2) == pytest.approx(50 + 50 + (2 + 40))
    assert all_of(carried, sends, 4, 2) == pytest.approx(2 * 2 * 150 + four - 7 - 1.3)
    assert all_of(carried, sends, 4, 4) == pytest.approx(2 * 150 + four - 7 - 1.3)
    summed = replace(wire, allreduce_cpu=line(0.0, 1.0))
    assert all_of(summed, sends, 4, 2) == pytest.approx(four - (6 + 60) + 2 * 600)


def all_of(link: Link, sends: Sends, ranks: int, cores: int) -> float:
    return link.exchanges_s(sends, ranks, cores) + link.sums_s(sends, ranks, cores)


def test_work_of_more_ranks_than_cores() -> None:
    kernels = Kernels(
        alone={"rows": (1, 0, 0, 0, 0, 0.5), "vectors": (1, 1, 0, 0, 0, 0)},
        beside={"rows": (2, 0, 0, 0, 0, 1.0), "vectors": (2, 2, 0, 0, 0, 0)},
    )
    work: dict[Kind, Work] = {"rows": Work(1, 9, 9, 9, 9, 10)}
    assert kernels.seconds(work, 1, cores=2) == 6
    assert kernels.seconds(work, 2, cores=2) == 12
    assert kernels.seconds(work, 3, cores=2) == 18
    assert kernels.seconds(work, 128, cores=128) == 12
    # Kinds share the constant part of a step.
    mixed: dict[Kind, Work] = {
        "rows": Work(0.25, 1, 9, 9, 9, 10),
        "vectors": Work(0.75, 3, 9, 9, 9, 10),
    }
    assert kernels.seconds(mixed, 1, cores=2) == 0.25 + 5 + 0.75 + 3


def test_work_and_bytes_by_placement() -> None:
    cell = Cell(ranks=4, categories=6, dims=(8,), batch=100, zipf=1.05, bag=20)
    ids, bags = 2000, 100
    rows, pooled, whole = (of_cell(cell, [placement]) for placement in cost_model.PLACEMENTS)
    distinct, of_all = (expected_distinct(1.05, draws) for draws in (ids, 4 * ids))
    assert distinct < of_all < 4 * distinct < 4 * ids
    assert amounts_of(rows) == {"rows": close(1, 6, 6 * ids, 48 * distinct, 48 * ids, 48 * bags)}
    assert amounts_of(pooled) == {
        "vectors": close(1, 6, 6 * ids, 12 * of_all, 48 * ids, 192 * bags)
    }
    # Two of the four ranks have two of the six tables, a third more than the mean.
    assert amounts_of(whole) == {"vectors": close(1, 8, 8 * ids, 16 * of_all, 64 * ids, 64 * bags)}
    for load, sent in (
        (rows, (6 * 8 * distinct * 3 / 4, 6 * 32 * distinct * 3 / 4)),
        (pooled, (6 * (8 * ids * 3 / 4 + 4 * bags * 3), 6 * 32 * bags * 3)),
        (whole, (8 * (8 * ids + 4 * bags) * 3 / 4, 8 * 32 * bags * 3 / 4)),
    ):
        assert load.sends.leaving(4)[:3] == pytest.approx([sent[0], sent[1], sent[1]])
    mixed = of_cell(cell, ["rows", "pooled"])
    assert amounts_of(mixed) == {
        "rows": close(0.5, 3, 3 * ids, 24 * distinct, 24 * ids, 24 * bags),
        "vectors": close(0.5, 3, 3 * ids, 6 * of_all, 24 * ids, 96 * bags),
    }


def close(*amounts: float) -> object:
    return pytest.approx(list(amounts))


def amounts_of(load: Load) -> dict[Kind, list[float]]:
    return {kind: work.values() for kind, work in load.work.items()}


def test_distinct_ids_are_those_that_batches_have() -> None:
    cell = Cell(ranks=1, categories=1, dims=(4,), batch=500, zipf=0.8, bag=8)
    (batch,) = cell.batches(1, seed=1)
    assert batch.offsets[-1] == 4000
    distinct = len(np.unique(batch.values.numpy()))
    assert expected_distinct(0.8, 4000) == pytest.approx(distinct, rel=0.03)
    assert expected_distinct(0.8, 1) == pytest.approx(1)
    assert expected_distinct(1.05, 10**8) == pytest.approx(100_000, rel=1e-3)


def test_a_link_of_a_lower_rate_limits_long_messages_only() -> None:
    curve = Curve(1.0, (10.0, 100.0), (1.5, 2.0))
    assert curve.limited(20.0) == Curve(1.0, (10.0, 100.0), (1.5, 6.0))
    link = Link(curve, curve, curve, curve).limited(20.0)
    assert (link.exchange, link.exchange_cpu) == (curve.limited(20.0), curve)
    assert (link.allreduce, link.allreduce_cpu) == (curve.limited(20.0), curve)


def test_far_ranks_have_placements_that_auto_plans() -> None:
    single, bags = Cell(8, 26, (64,), 512, 1.05), Cell(8, 16, (64,), 512, 1.05, 50)
    assert cost_model.planned(single, 1e9 / 8) == ["rows"] * 26
    assert cost_model.planned(bags, 1e9 / 8) == ["whole"] * 16
    # Whole tables of 16 of 128 ranks would bound the step.
    many = cost_model.planned(replace(bags, ranks=128), 1e9 / 8)
    assert "whole" not in many


def test_scaling_is_relative_to_the_smallest_number_of_ranks() -> None:
    each: dict[Kind, tuple[float, ...]] = {"rows": (1, 0, 0, 0, 0, 0)}
    kernels = Kernels(each, each)
    free = Link(NOTHING, NOTHING, NOTHING, NOTHING)
    cells = {ranks: replace(CELL, ranks=ranks) for ranks in (8, 128)}
    steps = {
        ranks: predict(kernels, free, cell, ["rows"], ranks).step_s for ranks, cell in cells.items()
    }
    assert scaling(steps) == {8: 1, 128: 1}
    rings = replace(free, allreduce=line(0.5, 0.0))
    steps = {
        ranks: predict(kernels, rings, cell, ["rows"], ranks).step_s
        for ranks, cell in cells.items()
    }
    # A step has two rings: for the loss and for the layers.
    assert scaling(steps) == {8: 1, 128: pytest.approx((1 + 7) / (1 + 127))}


def test_predicted_bytes_equal_those_of_a_real_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    measured = cost_model.Measured([cost_model.LOOPBACK], seed=1, rounds=1, short=True)
    bags = replace(CELL, bag=10)
    for ranks in (2, 3):
        cells = [replace(CELL, ranks=ranks), replace(bags, ranks=ranks)]
        placed = [*product(cells, cost_model.PLACEMENTS)]
        job = measured.job(cells=[(cell.as_json(), placement) for cell, placement in placed])
        said = cost_model.said(cost_model.LOOPBACK, ranks, job)
        for (cell, placement), seen in zip(placed, said, strict=True):
            assert seen["placement"] == placement
            expected = sum(of_cell(cell, [placement]).sends.leaving(ranks))
            # Owners of distinct rows have unequal shares.
            assert seen["bytes"] == pytest.approx(expected, rel=0.1), (cell.name, placement)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_everything_that_is_fitted_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "FITTED", cost_model.FITTED[1:3])
    monkeypatch.setattr(cost_model, "FITTED_BAGS", cost_model.FITTED_BAGS[1:3])
    measured = cost_model.Measured([cost_model.LOOPBACK], seed=1, rounds=1, short=True)
    measured.small()
    assert set(measured.work) == {
        (busy, kind, cell)
        for busy in (1, cost_model.CORES)
        for kind in cost_model.KINDS
        for cell in cost_model.fitted(kind)
    }
    link = measured.link(cost_model.LOOPBACK)
    asked = [count for count, _ in cost_model.sizes(cost_model.LOOPBACK, short=True)]
    # Half of an all-to-all stays on the rank; sizes up to SMALL_BYTES give the constant.
    assert link.exchange.sizes == tuple(2 * count for count in asked if 2 * count > SMALL_BYTES)
    assert link.allreduce_cpu.sizes == tuple(
        4 * count for count in asked if 4 * count > SMALL_BYTES
    )
    assert all(min(each) >= 0 for each in measured.kernels().beside.values())
