"""Start the ranks of a job on this machine and read the output of rank 0."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.slow_links.links import Network


def ranks_say(
    program: Path, job: dict[str, Any], ranks: int, made: Network | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that rank 0 prints, as they come.

    Args:
        program: Program of a rank. Its argument is the job as JSON, plus its `rank`, the number of `ranks`, and a shared
            `folder`.
        job: The job.
        ranks: Number of processes.
        made: Network with a namespace for each rank; None: loopback.

    Raises:
        RuntimeError: A rank failed.
    """
    with tempfile.TemporaryDirectory(dir=os.environ.get("ROWMILL_BENCH_DIR")) as folder:
        started: list[subprocess.Popen[str]] = []
        for rank in range(ranks):
            told = {**job, "rank": rank, "ranks": ranks, "folder": folder}
            command = [sys.executable, str(program), json.dumps(told)]
            environment = {} if made is None else {"GLOO_SOCKET_IFNAME": made.interface}
            started.append(
                subprocess.Popen(
                    command if made is None else made.command(rank, command),
                    env={**os.environ, **environment},
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    text=True,
                )
            )
        lines = started[0].stdout
        assert lines is not None
        try:
            with lines:
                yield from map(json.loads, lines)
            if any([process.wait() for process in started]):
                raise RuntimeError("a rank failed: its error is above")
        finally:
            for process in started:
                process.kill()
                process.wait()
