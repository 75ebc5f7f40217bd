"""Combine the measurements of all ranks into the metrics of a run.

A run is a dictionary as written to JSON. Times are in milliseconds per step, averaged over steps and ranks.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.dlrm_scaling.step import PHASES
from benchmarks.dlrm_scaling.timeline import OTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.dlrm_scaling.settings import Settings

COLLECTIVES = {
    "counts": "counts of ids",
    "keys": "ids",
    "rows": "rows",
    "gradients": "row gradients",
    "allreduce": "allreduce",
}
"""Readable names of the collectives, in the order of a step."""


def summary(settings: Settings, ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The metrics of one run, from the results of `measure` on every rank.

    `phase_ms` plus `exposed_ms` of all collectives equals `step_ms`.
    """

    def mean(kind: str, name: str) -> float:
        return statistics.fmean(rank[kind].get(name, 0.0) for rank in ranks)

    phases = {name: mean("phase_ms", name) for name in (*PHASES, OTHER)}
    collectives = {
        leg: {
            "exposed_ms": mean("exposed_ms", leg),
            "total_ms": mean("total_ms", leg),
            "bytes": mean("bytes", leg),
            "rounds": mean("rounds", leg),
        }
        for leg in COLLECTIVES
    }
    steps = [step for rank in ranks for step in rank["step_ms"]]
    step_ms = statistics.fmean(steps)
    return {
        "settings": {**settings.__dict__},
        "samples": settings.samples,
        "step_ms": step_ms,
        "step_ms_median": statistics.median(steps),
        "step_ms_least": min(steps),
        "step_ms_most": max(steps),
        "samples_per_s": 1e3 * settings.samples / step_ms,
        "phase_ms": phases,
        "collectives": collectives,
        "exposed_ms": sum(one["exposed_ms"] for one in collectives.values()),
        # The loss of a rank is its share of the mean over the batch.
        "losses": [sum(shares) for shares in zip(*(r["losses"] for r in ranks), strict=True)],
        "ranks": list(ranks),
    }


def scaling(runs: Sequence[dict[str, Any]], sweep: str) -> list[float | None]:
    """For every run, the gain over the run with the fewest ranks and equal settings; None for that run itself.

    Strong scaling: ratio of step times. Weak scaling: ratio of samples per second.
    """
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    gains: list[float | None] = []
    for run in sorted(runs, key=lambda run: run["settings"]["ranks"]):
        first.setdefault(_alike(run), run)
    for run in runs:
        base = first[_alike(run)]
        figure = ("step_ms", base, run) if sweep == "strong" else ("samples_per_s", run, base)
        gains.append(None if run is base else figure[1][figure[0]] / figure[2][figure[0]])
    return gains


def _alike(run: dict[str, Any]) -> tuple[Any, ...]:
    apart = ("ranks", "store")
    return tuple(value for name, value in run["settings"].items() if name not in apart)


def title(run: dict[str, Any]) -> str:
    """A short name of a run, from the settings that may differ within one command."""
    settings = run["settings"]
    ranks = "1 rank" if settings["ranks"] == 1 else f"{settings['ranks']} ranks"
    pinned = "" if settings["pin"] == "off" else f", pinned {settings['pin']}"
    return f"{ranks}, {settings['backend']}, {settings['comm']}, {settings['precision']}{pinned}"
