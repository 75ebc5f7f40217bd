"""Figures of cells, and what they must be.

A record is what one cell has shown: `run.py` describes its fields. Ratios are taken round by round.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import common
from benchmarks.claims import Claim
from benchmarks.hybrid.cells import FIXED
from rowmill.distributed.placement import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LEGS = ("counts", "keys", "rows", "gradients")
"""Messages of the exchange, in the order of a step; `rows` are rows or pooled vectors."""
SUMMED = "allreduce"
"""Messages of dense gradients."""
FIGURES = ("step_ms", "sparse_ms", "messages_ms", "exposed_ms")
NEAR = {"10": 1.1, "20": 1.2}
"""How many percent, and as a factor, `auto` may be slower than the best fixed placement."""
CLAIMS = (
    *(
        claim
        for half in ("step", "sparse")
        for claim in (
            Claim(f"auto_within_10_percent_of_best_{half}", least=0.9),
            Claim(f"auto_within_20_percent_of_best_{half}", least=1),
        )
    ),
    Claim("small_r2_1gbit_*_rows_over_auto_messages", least=4),
    Claim("large_r2_1gbit_*_rows_over_auto_messages", least=8),
    Claim("small_r2_1gbit_*_rows_over_auto_step", least=1.4),
    Claim("bytes_off_formula_most", most=0.05),
)
AIMS = (Claim("small_r2_1gbit_*_rows_over_auto_step", least=1.8),)


def figures(seen: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds of a step, from what all ranks have measured in a round: means over steps and ranks.

    `messages` and `sparse` are those of blocking communication, which hides nothing: the first is how long messages were on
    their way, the second is all that a step does for rows, waiting included. `step` and `exposed` are those of overlap.
    """

    def mean(comm: str, kind: str, name: str) -> float:
        return statistics.fmean(of[comm][kind].get(name, 0.0) for of in seen)

    messages = {leg: mean("blocking", "total_ms", leg) for leg in LEGS}
    waits = sum(mean("blocking", "exposed_ms", leg) for leg in LEGS)
    work = sum(mean("blocking", "phase_ms", phase) for phase in ("lookup", "lookup backward"))
    exposed = {leg: mean("overlap", "exposed_ms", leg) for leg in (*LEGS, SUMMED)}
    return {
        "step_ms": statistics.fmean(ms for of in seen for ms in of["overlap"]["step_ms"]),
        "blocking_step_ms": statistics.fmean(ms for of in seen for ms in of["blocking"]["step_ms"]),
        "sparse_ms": work + waits,
        "messages_ms": sum(messages.values()),
        "exposed_ms": sum(exposed.values()),
        **{f"messages_{leg}_ms": ms for leg, ms in messages.items()},
        **{f"exposed_{leg}_ms": ms for leg, ms in exposed.items()},
    }


def sent_bytes(seen: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Bytes that a rank sends in a step, by message: the mean over ranks."""
    return {leg: statistics.fmean(of["blocking"]["bytes"][leg] for of in seen) for leg in LEGS}


def summarize(benchmark: common.Benchmark, records: Sequence[Mapping[str, Any]]) -> None:
    """Add the figures of all records to the summary."""
    behind: dict[str, list[float]] = {"step": [], "sparse": []}
    off: list[float] = []
    for record in records:
        name = record["cell"]
        rounds = {of["variant"]: of["rounds"] for of in record["variants"]}
        for variant, of in rounds.items():
            for figure in FIGURES:
                median = common.Median.of(each[figure] for each in of)
                benchmark.summarize(f"{name}_{variant}_{figure}", median)
        for of in record["variants"]:
            sent = sum(of["bytes"].values())
            benchmark.summary[f"{name}_{of['variant']}_mb"] = sent / 1e6
            off.append(abs(sent / of["formula_bytes"] - 1))
        for figure in FIGURES[:3]:
            of = figure.removesuffix("_ms")
            gain = _ratio(rounds["rows"], rounds[AUTO], figure)
            benchmark.summarize(f"{name}_rows_over_{AUTO}_{of}", gain)
        for of, ratios in behind.items():
            best = min(FIXED, key=lambda kind: _median(rounds[kind], f"{of}_ms"))
            ratio = _ratio(rounds[AUTO], rounds[best], f"{of}_ms")
            benchmark.summarize(f"{name}_{AUTO}_over_best_{of}", ratio)
            ratios.append(ratio.value)
    for of, ratios in behind.items():
        for percent, factor in NEAR.items():
            share = statistics.fmean(ratio <= factor for ratio in ratios)
            benchmark.summary[f"auto_within_{percent}_percent_of_best_{of}"] = share
    benchmark.summary["bytes_off_formula_most"] = max(off)


def _median(rounds: Iterable[Mapping[str, float]], figure: str) -> float:
    return statistics.median(each[figure] for each in rounds)


def _ratio(
    rounds: Iterable[Mapping[str, float]], of: Iterable[Mapping[str, float]], figure: str
) -> common.Median:
    pairs = zip(rounds, of, strict=True)
    return common.Median.of(mine[figure] / theirs[figure] for mine, theirs in pairs)
