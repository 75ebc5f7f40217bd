"""benchmarks/rounds.py decides which rounds count; tested with given rates and a clock that the test controls."""

from collections.abc import Callable, Sequence

import pytest

from benchmarks import common
from benchmarks.rounds import Cell, Patience, counted, run_rounds


def variants(order: list[str], **rates: Sequence[float]) -> dict[str, Callable[[int], Cell]]:
    """Variants with a given rate per round; the last rate repeats."""

    def variant(name: str) -> Callable[[int], Cell]:
        def one(number: int) -> Cell:
            order.append(name)
            rate = rates[name][min(number, len(rates[name]) - 1)]
            kind = "reads_per_s" if name == "probe" else "rows_per_s"
            return {"variant": name, "round": number, kind: rate}

        return one

    return {name: variant(name) for name in rates}


@pytest.fixture
def benchmark() -> common.Benchmark:
    return common.Benchmark(common.Settings(True, 1, None, ""))


def test_rounds_end_when_the_last_ones_are_stationary(benchmark: common.Benchmark) -> None:
    order: list[str] = []
    made = variants(order, own=[50, 80, 100, 104, 96, 100], probe=[9.0])
    run_rounds(benchmark, made, Patience(rounds=3), clock=lambda: 0.0)
    assert benchmark.summary["rounds_run"] == 5
    assert benchmark.summary["stationary"] == 1
    assert benchmark.summary["own_rate_spread"] == pytest.approx(0.08)
    assert [cell["rows_per_s"] for cell in counted(benchmark, "own")] == [100, 104, 96]
    assert [cell["round"] for cell in counted(benchmark, "probe")] == [2, 3, 4]
    assert len(benchmark.cells) == 10
    assert order[:6] == ["own", "probe", "probe", "own", "own", "probe"]


def test_rounds_that_are_never_stationary_end_by_the_clock(benchmark: common.Benchmark) -> None:
    minutes = iter(range(100))
    made = variants([], own=[10.0] * 20, peer=[10.0, 20.0] * 10)
    patience = Patience(rounds=2, minutes=6)
    run_rounds(benchmark, made, patience, name="zipf_", clock=lambda: 60.0 * next(minutes))
    # The clock is read at the start, and once per round that might be the last.
    assert benchmark.summary["zipf_rounds_run"] == 7
    assert benchmark.summary["zipf_stationary"] == 0
    assert benchmark.summary["peer_rate_spread"] == pytest.approx(10 / 15)
    assert [cell["round"] for cell in counted(benchmark, "own")] == [5, 6]


def test_at_least_the_rounds_that_count_are_run(benchmark: common.Benchmark) -> None:
    run_rounds(benchmark, variants([], own=[7.0]), Patience(rounds=4, minutes=0))
    assert [cell["round"] for cell in counted(benchmark, "own")] == [0, 1, 2, 3]
