"""The timeline of a step, with a clock that the test controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from benchmarks.dlrm_scaling import timeline
from benchmarks.dlrm_scaling.timeline import Timeline, covered

if TYPE_CHECKING:
    from collections.abc import Callable


class Work:
    """A collective that ends when the test says so."""

    def __init__(self) -> None:
        self._future: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> Any:
        return self._future

    def end(self) -> None:
        self._future.set_result(None)


@pytest.fixture
def pass_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = 100.0

    def go(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(timeline.time, "perf_counter", lambda: now)
    return go


def test_a_nested_phase_counts_once(pass_s: Callable[[float], None]) -> None:
    line = Timeline()
    for _ in range(2):
        with line.step():
            pass_s(1)
            with line.phase("outer"):
                pass_s(2)
                with line.phase("inner"):
                    pass_s(4)
                pass_s(8)
                line.switch("rest")
                pass_s(16)
            pass_s(32)
        pass_s(1000)
    assert line.times.step_s == [63, 63]
    assert line.times.phase_s == {"other": 66, "outer": 20, "inner": 8, "rest": 32}


def test_a_collective_is_hidden_until_it_is_waited_for(pass_s: Callable[[float], None]) -> None:
    line, early, late = Timeline(), Work(), Work()
    with line.step():
        line.begun("rows", early)
        pass_s(1)
        line.begun("rows", late)
        with line.phase("work"):
            pass_s(2)
            early.end()
            pass_s(4)
        with line.waiting("rows"):
            pass_s(8)
            late.end()
        pass_s(16)
        # No collective is in flight, so this is not exposed time.
        with line.waiting("rows"):
            pass_s(32)
    assert line.times.exposed_s == {"rows": 8}
    assert line.times.total_s == {"rows": 1 + 2 + 4 + 8}
    assert line.times.phase_s == {"work": 6, "other": 1 + 16 + 32}


def test_a_collective_in_flight_across_steps_counts_in_both(
    pass_s: Callable[[float], None],
) -> None:
    line = Timeline()
    with line.step():
        pass_s(1)
        line.begun("rows", Work())
        pass_s(2)
    assert line.times.total_s == {"rows": 2}
    pass_s(1000)
    with line.step():
        pass_s(4)
        with line.waiting("rows"):
            pass_s(8)
        pass_s(16)
    assert line.times.exposed_s == {"rows": 8}
    assert line.times.total_s == {"rows": 2 + 4 + 8}


def test_a_failed_wait_sets_lost(pass_s: Callable[[float], None]) -> None:
    line = Timeline()

    def fail() -> None:
        with line.step():
            line.begun("rows", Work())
            assert not line.lost
            with line.waiting("rows"):
                pass_s(1)
                raise RuntimeError("connection closed")

    with pytest.raises(RuntimeError, match="connection closed"):
        fail()
    assert line.lost


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(1, 2), (3, 5)], 3),
        ([(0, 10), (2, 3), (9, 12)], 12),
        ([(5, 6), (0, 1), (0.5, 5.5)], 6),
    ],
)
def test_overlapping_intervals_count_once(spans: list[tuple[float, float]], length: float) -> None:
    assert covered(spans) == length
