"""Where the time of requests goes, by stage, and what is busiest."""

import re

from benchmarks.serving.cells import Cell

_SUM = re.compile(r'rowmill_serve_stage_duration_seconds_sum\{model="[^"]*",stage="([^"]*)"\}')


def stages_ms(cell: Cell) -> dict[str, float]:
    """Mean milliseconds of a request in each stage.

    `crossing` is the way to a dense half in another process and back, without the time in that process: messages, and
    waiting for a thread to read them.
    """
    found: dict[str, float] = {}
    for role in ("all", "cpu", "dense"):
        metrics: dict[str, float] = cell.get(f"{role}_metrics", {})
        for name, seconds in metrics.items():
            if match := _SUM.fullmatch(name):
                found[match[1]] = 1e3 * seconds / metrics[name.replace("_sum{", "_count{")]
    if "crossing" in found:
        found["crossing"] -= found.get("dense", 0.0) + found.get("dense_queue", 0.0)
    return found


def busy(cell: Cell, cpu_s: float) -> dict[str, float]:
    """Shares of time in which parts are busy; the largest is the bound.

    Args:
        cell: A load.
        cpu_s: CPU time of all workers.

    Returns:
        `lookup` and `dense`: of the threads that run the CPU half and the dense half. `cores`: of the machine, by the workers
        alone.
    """
    report, stages = cell["report"], stages_ms(cell)
    per_ms = report["answered_per_s"] / 1e3
    return {
        "lookup": per_ms * stages.get("cpu", 0.0) / cell["cores"],
        "dense": per_ms * stages.get("dense", 0.0),
        "cores": cpu_s / report["seconds"] / cell["cores"],
    }
