"""The arithmetic of benchmarks/cost_model, and its counts of bytes compared with a real step.

What could break: a fit that does not recover the values behind the data, or gives a negative time; messages between more
ranks with the cost of two; ranks that share cores but are modelled with their own; wrong byte counts. Speed is not
checked.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cost_model import run as cost_model
from benchmarks.cost_model.model import (
    SMALL_BYTES,
    Curve,
    Kernels,
    Link,
    Sends,
    Work,
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
    works = [of_cell(cell, 1)[0] for cell in cost_model.FITTED]
    seconds = (1e-3, 2e-5, 3e-9, 0.0, 5e-10)
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
    kernels = Kernels(alone=(1, 0, 0, 0, 0.5), beside=(2, 0, 0, 0, 1.0))
    work = Work(1, 9, 9, 9, 10)
    assert kernels.seconds(work, 1, cores=2) == 6
    assert kernels.seconds(work, 2, cores=2) == 12
    assert kernels.seconds(work, 3, cores=2) == 18
    assert kernels.seconds(work, 128, cores=128) == 12


def test_scaling_is_relative_to_the_smallest_number_of_ranks() -> None:
    kernels = Kernels(alone=(1, 0, 0, 0, 0), beside=(1, 0, 0, 0, 0))
    free = Link(NOTHING, NOTHING, NOTHING, NOTHING)
    cells = {ranks: replace(CELL, ranks=ranks) for ranks in (8, 128)}
    steps = {ranks: predict(kernels, free, cell, 1, ranks).step_s for ranks, cell in cells.items()}
    assert scaling(steps) == {8: 1, 128: 1}
    rings = replace(free, allreduce=line(0.5, 0.0))
    steps = {ranks: predict(kernels, rings, cell, 1, ranks).step_s for ranks, cell in cells.items()}
    # A step has two rings: for the loss and for the layers.
    assert scaling(steps) == {8: 1, 128: pytest.approx((1 + 7) / (1 + 127))}


def test_predicted_bytes_equal_those_of_a_real_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWMILL_BENCH_DIR", str(tmp_path))
    measured = cost_model.Measured([cost_model.LOOPBACK], seed=1, rounds=1, short=True)
    for ranks in (2, 3):
        job = measured.job(cells=[replace(CELL, ranks=ranks).as_json()])
        (seen,) = cost_model.said(cost_model.LOOPBACK, ranks, job)
        _, sends = of_cell(CELL, 1)
        # Ids of other ranks are different, and owners have unequal shares.
        assert seen["bytes"] == pytest.approx(sum(sends.leaving(ranks)), rel=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_everything_that_is_fitted_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "FITTED", cost_model.FITTED[1:3])
    measured = cost_model.Measured([cost_model.LOOPBACK], seed=1, rounds=1, short=True)
    measured.small()
    assert {cell for _, cell in measured.work} == set(cost_model.FITTED)
    assert {busy for busy, _ in measured.work} == {1, cost_model.CORES}
    link = measured.link(cost_model.LOOPBACK)
    asked = [count for count, _ in cost_model.sizes(cost_model.LOOPBACK, short=True)]
    # Half of an all-to-all stays on the rank; sizes up to SMALL_BYTES give the constant.
    assert link.exchange.sizes == tuple(2 * count for count in asked if 2 * count > SMALL_BYTES)
    assert link.allreduce_cpu.sizes == tuple(
        4 * count for count in asked if 4 * count > SMALL_BYTES
    )
    assert min(measured.kernels().beside) >= 0
