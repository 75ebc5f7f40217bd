"""Ranks as real processes over gloo, kept for all tests of a session."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from python.tests.warm import warm_python

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parent / "rank.py"
RANKS_MAX = 4


class Processes:
    """Processes that run jobs, one rank each."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def run(
        self, name: str, folder: Path, *, count: int, timeout_s: float = 60.0, **arguments: Any
    ) -> list[dict[str, Any]]:
        """Run a job on `count` ranks; returns the result of each rank."""
        folder.mkdir(parents=True, exist_ok=True)
        while len(self._running) < count:
            self._running.append(
                subprocess.Popen(
                    [warm_python(), str(SCRIPT)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for rank, process in enumerate(self._running[:count]):
            job = {"name": name, "folder": str(folder), "rank": rank, "count": count}
            assert process.stdin is not None
            print(
                json.dumps({**job, "timeout_s": timeout_s, "arguments": arguments}),
                file=process.stdin,
                flush=True,
            )
        results: list[dict[str, Any]] = []
        for process in self._running[:count]:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "a rank died: its error is above"
            results.append(json.loads(line))
        assert not [result for result in results if "failed" in result], results
        return results

    def end(self) -> None:
        """End all processes."""
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._running:
            assert process.stdout is not None
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()
