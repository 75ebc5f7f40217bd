"""Run variants in interleaved rounds until their rates are stationary or time is up.

A round runs every variant once, and the first variant rotates. Only the last `rounds` rounds count. Earlier rounds are
kept in the result, marked `counted: false`.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import common

Cell = dict[str, Any]
"""Result of a variant in one round, with its rate: `rows_per_s`, or `reads_per_s` for a probe of the device."""


@dataclass(frozen=True)
class Patience:
    """When to stop running rounds.

    Attributes:
        rounds: Number of rounds that count.
        spread: Rounds are stationary if the range of each variant's rates is at most this fraction of their median.
        minutes: After this time the last rounds count even if they are not stationary, and the summary says so.
    """

    rounds: int = 5
    spread: float = 0.15
    minutes: float = 30.0


def run_rounds(
    benchmark: common.Benchmark,
    variants: Mapping[str, Callable[[int], Cell]],
    patience: Patience,
    *,
    name: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run rounds, and record a cell for every variant in each.

    The summary gets the number of rounds and whether the last ones are stationary, under keys that begin with `name`, and
    the rate of each variant in the rounds that count.

    Args:
        benchmark: Receives cells and summary.
        variants: By the name in cells, a function that runs one round, given its number.
        patience: When to stop.
        name: Prefix of the summary keys, for a benchmark with several sets of rounds.
        clock: Returns the time in seconds.
    """
    names = list(variants)
    found: dict[str, list[Cell]] = {variant: [] for variant in names}
    end = clock() + 60 * patience.minutes
    number = 0
    while True:
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            cell = variants[variant](number)
            found[variant].append(cell)
            benchmark.cells.append(cell)
            print(f"{variant}, round {number}: {_rate(cell):,.0f}/s", file=sys.stderr, flush=True)
        number += 1
        last = {variant: cells[-patience.rounds :] for variant, cells in found.items()}
        rates = {variant: common.Median.of(map(_rate, cells)) for variant, cells in last.items()}
        stationary = max(rate.spread for rate in rates.values()) <= patience.spread
        if number >= patience.rounds and (stationary or clock() >= end):
            break
    for cells in found.values():
        for cell in cells[: -patience.rounds]:
            cell["counted"] = False
    benchmark.summary[f"{name}rounds_run"] = float(number)
    benchmark.summary[f"{name}stationary"] = float(stationary)
    for variant, rate in rates.items():
        benchmark.summarize(f"{variant}_rate", rate)


def counted(benchmark: common.Benchmark, variant: str) -> list[Cell]:
    """The cells of a variant in the rounds that count, in order."""
    cells: list[Cell] = benchmark.cells  # pyright: ignore[reportAssignmentType]
    return [cell for cell in cells if cell["variant"] == variant and cell.get("counted", True)]


def _rate(cell: Cell) -> float:
    return cell["rows_per_s"] if "rows_per_s" in cell else cell["reads_per_s"]
