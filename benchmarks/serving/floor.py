"""The latency of an ideal server on this machine, at this time.

A process per core calculates all the time, in units that take as long as a request. Each unit says how fast its core was then.
From these times follows the latency of a server that answers each request alone, in the order of arrival, on the core that is
free first: without sockets, batches, or threads that share a core. What is left is due to random arrivals, and to the other work
of the machine.
"""

import hashlib
import heapq
import json
import os
import random
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Units = Sequence[tuple[float, float]]
"""Begin and end of each unit of one core, in seconds."""
_ROOT = Path(__file__).parents[2]
_CALIBRATION_BYTES = 64 << 20


def floor(request_s: float, share: float, seconds: float, seed: int) -> dict[str, Any]:
    """Measure the ideal server, in the form of a report of `rowmill loadtest`.

    Args:
        request_s: CPU time of a request.
        share: Requests that arrive, as a share of those that all cores could answer.
        seconds: How long.
        seed: Of the arrivals.
    """
    cores = len(os.sched_getaffinity(0))
    data = bytes(_CALIBRATION_BYTES)
    begin = time.perf_counter()
    hashlib.sha256(data)
    size = int(_CALIBRATION_BYTES * request_s / (time.perf_counter() - begin))
    command = [sys.executable, "-m", "benchmarks.serving.floor", str(seconds), str(size)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        for _ in range(cores)
    ]
    units: list[Units] = [json.loads(process.communicate()[0]) for process in running]
    first, last = max(of[0][0] for of in units), min(of[-1][1] for of in units)
    capacity = sum(map(len, units)) / seconds
    arrivals = list(_poisson(share * capacity, first, last, seed))
    latencies = sorted(simulate(units, arrivals))
    quantiles = {f"p{percent}": _quantile(latencies, percent / 100) for percent in (50, 90, 99)}
    return {
        "capacity_per_s": capacity,
        "longest_unit_ms": 1e3 * max(end - begin for of in units for begin, end in of),
        "report": {"latency_ms": quantiles, "counts": {"in_time": len(latencies)}},
    }


def simulate(units: Sequence[Units], arrivals: Iterable[float]) -> list[float]:
    """The latency of each request in seconds, where cores work as fast as in `units`, and requests arrive in order."""
    begins = [[begin for begin, _ in of] for of in units]
    free = [(0.0, core) for core in range(len(units))]
    latencies: list[float] = []
    for arrival in arrivals:
        free_at, core = heapq.heappop(free)
        begin = max(free_at, arrival)
        # The unit that begins next: a stop of the core that is under way is left out, so that the result is no overestimate.
        number = min(bisect_left(begins[core], begin), len(begins[core]) - 1)
        end = begin + units[core][number][1] - units[core][number][0]
        latencies.append(end - arrival)
        heapq.heappush(free, (end, core))
    return latencies


def _poisson(rate: float, begin: float, end: float, seed: int) -> Iterable[float]:
    generator = random.Random(seed)
    at = begin + generator.expovariate(rate)
    while at < end:
        yield at
        at += generator.expovariate(rate)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """In milliseconds."""
    return 1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _work(seconds: float, size: int) -> list[tuple[float, float]]:
    """Calculate; the clock is the same in all processes."""
    data = bytes(size)
    units: list[tuple[float, float]] = []
    begin = time.clock_gettime(time.CLOCK_MONOTONIC)
    last = begin + seconds
    while begin < last:
        hashlib.sha256(data)
        end = time.clock_gettime(time.CLOCK_MONOTONIC)
        units.append((begin, end))
        begin = end
    return units


if __name__ == "__main__":
    print(json.dumps(_work(float(sys.argv[1]), int(sys.argv[2]))))
