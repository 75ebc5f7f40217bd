"""Full garbage collections of a worker, during which all threads of Python wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from python.tests.serve.counting import COUNTS_FROM
from python.tests.serve.pausing import export_pausing
from python.tests.serve.workers import START_S, worker

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_OBJECTS_MAX = 20_000
"""torch and the packages that it imports have ten times as many."""


def test_a_ready_worker_collects_its_own_objects_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "pausing"
    export_pausing(bundle)
    is_ready = tmp_path / "ready"
    monkeypatch.setenv(COUNTS_FROM, str(is_ready))
    program = "python.tests.serve.counting"
    with worker(bundle, "--http-port", "0", "--metrics-port", "0", program=program) as ready:
        is_ready.touch()
        until = time.monotonic() + START_S
        while not (counts := [line for line in ready.log if line.startswith("collected")]):
            assert time.monotonic() < until, ready.log
            time.sleep(0.05)
        assert int(counts[0].rpartition(": ")[2]) < _OBJECTS_MAX, ready.log
        assert ready.end() == 0
