"""Load of `rowmill loadtest`, and what the servers use meanwhile."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from benchmarks.serving.worker import Worker

PROGRAM_CPU = "rowmill_serve_program_cpu_seconds_total"
_STAGES = "rowmill_serve_stage_duration_seconds_"
_LEFT_OUT = {"url", "model", "seed", "warm_up_s", "statuses", "first_wrong", "warnings", "lag_ms"}
"""Of reports: the cell has it, or no figure uses it. A result has hundreds of cells."""


@dataclass(frozen=True)
class Load:
    """What is asked.

    Attributes:
        model: The model's name.
        requests: File of recorded requests.
        seconds: How long requests are sent.
        slo_s: The timeout that they carry.
        senders: Number of senders of a closed loop; None: an open loop.
        rate: Requests per second of an open loop.
        warm_up_s: Seconds before, whose requests count only in CPU time: connections are opened then.
    """

    model: str
    requests: Path
    seconds: float
    slo_s: float
    senders: int | None = None
    rate: float | None = None
    warm_up_s: float = 0.0

    def run(self, url: str, inside: tuple[str, ...] = ()) -> dict[str, Any]:
        """Send it; returns the report of `rowmill loadtest`."""
        pace = ("--senders", self.senders) if self.rate is None else ("--rate", self.rate)
        with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
            out = Path(folder) / "report.json"
            command = [*inside, sys.executable, "-m", "rowmill", "loadtest", url, self.model]
            command += ["--requests", str(self.requests), *map(str, pace)]
            command += [
                "--warm-up",
                str(self.warm_up_s),
                "--seconds",
                str(self.seconds),
                "--slo",
                str(self.slo_s),
            ]
            command += ["--json", str(out)]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, preexec_fn=_take_no_core
            )
            if not out.exists():
                raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
            return json.loads(out.read_text())


def _take_no_core() -> None:
    """Let this process wait for a core where it would take one from a server: clients elsewhere take none.

    The latency of requests at a rate contains this wait: it counts from the time at which they are due.
    """
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def measured(load: Load, workers: Mapping[str, Worker], url: str) -> dict[str, Any]:
    """Send a load.

    All requests arrive and end between the two readings of CPU time.

    Returns:
        The report and the number of cores; for each worker `<role>_cpu_s` and `<role>_huge_pages`, the part of its memory that is in huge
        pages, and if it publishes metrics `<role>_program_cpu_s` and how the times of stages increased, as `<role>_metrics`.
    """
    front = next(worker for worker in workers.values() if url in worker.addresses.values())
    before = {role: _usage(worker) for role, worker in workers.items()}
    report = load.run(f"http://{url}", front.inside)
    kept = {
        name: value
        for name, value in report.items()
        if name not in _LEFT_OUT and not _is_empty(value)
    }
    cell: dict[str, Any] = {"report": kept, "cores": len(os.sched_getaffinity(0))}
    for role, worker in workers.items():
        cpu_s, metrics = _usage(worker)
        cell[f"{role}_cpu_s"] = cpu_s - before[role][0]
        cell[f"{role}_huge_pages"] = worker.huge_pages()
        if metrics:
            risen = {
                name: value - before[role][1].get(name, 0.0) for name, value in metrics.items()
            }
            # Figures use no others.
            cell[f"{role}_metrics"] = {
                name: by
                for name, by in risen.items()
                if by and name.startswith(_STAGES) and "_bucket{" not in name
            }
            cell[f"{role}_program_cpu_s"] = program_cpu_s(risen)
    return cell


def _is_empty(part: Any) -> bool:
    """Whether a part of a report counted nothing."""
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("count") == 0


def program_cpu_s(metrics: Mapping[str, float]) -> float:
    """CPU seconds of the dense halves of a worker."""
    return sum(
        value
        for name, value in metrics.items()
        if name.startswith(PROGRAM_CPU) and 'half="dense"' in name
    )


def warm_up(load: Load, worker: Worker, url: str, count: int) -> None:
    """Send a load until one run has asked for each of its `count` requests: their rows are in memory then."""
    for _ in range(1000):
        report = load.run(f"http://{url}", worker.inside)
        if report["counts"]["failed"]:
            raise RuntimeError(f"{load.model} fails: {report['statuses']}")
        if report["counts"]["arrived"] >= count:
            return
    raise RuntimeError(f"{load.model} never answered {count} requests within {load.seconds} s")


def _usage(worker: Worker) -> tuple[float, dict[str, float]]:
    return worker.cpu_s(), worker.metrics() if "metrics" in worker.addresses else {}
