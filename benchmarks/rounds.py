"""Interleaved rounds of variants, until they are stationary or time is up.

A round runs every variant once; each round starts with the next variant. Only the last `rounds` rounds count. Earlier
rounds are kept in the result and marked `counted: false`.
"""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import common

Cell = dict[str, Any]
"""What a variant did in a round, with its rate: `rows_per_s`, or `reads_per_s` of a probe."""


@dataclass(frozen=True)
class Patience:
    """When rounds end.

    Attributes:
        rounds: So many rounds count.
        spread: They are stationary if the rates of each variant differ by no more than this part of their median.
        minutes: If they are not by then, the last ones count all the same, and the summary says so.
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
    """Run rounds, and keep the cell of every variant in each.

    The summary gets, behind `name`, how many rounds were run and whether the last ones are stationary, and for each
    variant the spread of its rates.

    Args:
        benchmark: Gets cells and summary.
        variants: The variant, as its cells name it -> one round of it, given its number.
        patience: When to end.
        name: What the keys of the summary begin with, where a benchmark has several sets of rounds.
        clock: Seconds.
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
        spreads = {
            variant: common.Median.of(map(_rate, cells)).spread for variant, cells in last.items()
        }
        stationary = max(spreads.values()) <= patience.spread
        if number >= patience.rounds and (stationary or clock() >= end):
            break
    for cells in found.values():
        for cell in cells[: -patience.rounds]:
            cell["counted"] = False
    benchmark.summary[f"{name}rounds_run"] = float(number)
    benchmark.summary[f"{name}stationary"] = float(stationary)
    for variant, spread in spreads.items():
        benchmark.summary[f"{variant}_rate_spread"] = spread


def counted(benchmark: common.Benchmark, variant: str) -> list[Cell]:
    """The cells of a variant that count, by round."""
    cells: list[Cell] = benchmark.cells  # pyright: ignore[reportAssignmentType]
    return [cell for cell in cells if cell["variant"] == variant and cell.get("counted", True)]


def _rate(cell: Cell) -> float:
    return cell["rows_per_s"] if "rows_per_s" in cell else cell["reads_per_s"]
