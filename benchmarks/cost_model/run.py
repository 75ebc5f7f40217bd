"""Does a cost model fitted to one and two ranks predict training on two, three and four?

The model is fitted to messages between two ranks and to steps of one rank, alone and with other busy cores. It predicts
steps of `benchmarks/exchange` over loopback and over slow links, which are measured for comparison. Last, it predicts the
scaling of steps to 128 ranks that have their own cores; this is a prediction, not a measurement.
"""

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.cost_model.model import (
    Curve,
    Kernels,
    Link,
    Step,
    fit_curve,
    fit_work,
    of_cell,
    predict,
    scaling,
)
from benchmarks.exchange.cells import CENTRE, FIVE, ONE, THREE, Cell, quick
from benchmarks.exchange.launch import ranks_say
from benchmarks.slow_links.links import missing, network

RANK = Path(__file__).with_name("rank.py")
CORES = len(os.sched_getaffinity(0))
LOOPBACK = "loopback"
LINKS = (LOOPBACK, "1gbit", "100mbit")
RANKS = (2, 3, 4)
FAR = (8, 16, 32, 64, 128)
"""Numbers of ranks that are predicted only, because this machine has too few cores."""
COLLECTIVES = ("exchange", "allreduce")
FITTED = tuple(
    Cell(1, categories, dims, batch, 1.05)
    for categories, dims, batch in (
        (16, ONE, 2048),
        (16, THREE, 256),
        (16, FIVE, 1024),
        (40, ONE, 1024),
        (40, THREE, 2048),
        (40, FIVE, 256),
        (120, ONE, 256),
        (120, THREE, 1024),
        (120, FIVE, 2048),
    )
)
"""Cells for the fit; none of them is predicted."""


def predicted(link: str, ranks: int) -> list[Cell]:
    """Cells that are both predicted and measured."""
    if link == "100mbit":
        # A step of the other cells would take seconds.
        return [replace(CENTRE, ranks=ranks), replace(CENTRE, ranks=ranks, dims=ONE)]
    return quick(ranks)


def sizes(link: str, *, short: bool) -> list[tuple[int, int]]:
    """Pairs of numbers per message and repeats, for messages over a class of links."""
    megabytes_per_s = {"1gbit": 120, "100mbit": 12}.get(link, 1000)
    largest = 21 if link != "100mbit" else 19
    budget_s = 0.3 if short else 1.0
    counts = [1 << exponent for exponent in range(3, largest + 1, 2)]
    return [
        (count, max(3, min(400, int(budget_s / (1.5e-3 + 4e-6 * count / megabytes_per_s)))))
        for count in counts
    ]


def said(link: str, ranks: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a job on ranks joined by links of this class; returns the JSON objects of rank 0."""
    with nullcontext() if link == LOOPBACK else network(ranks, link) as made:
        return list(ranks_say(RANK, job, ranks, made))


class Measured:
    """All measurements, collected pass by pass."""

    def __init__(self, links: Sequence[str], *, seed: int, rounds: int, short: bool) -> None:
        self.links = links
        self.seed, self.rounds, self.short = seed, rounds, short
        self.messages: dict[tuple[str, str, str, int], list[float]] = defaultdict(list)
        """Seconds by link, collective, clock and bytes."""
        self.work: dict[tuple[int, Cell], list[float]] = defaultdict(list)
        """Seconds of steps of one rank, by the number of busy cores and the cell."""
        self.steps: dict[tuple[str, Cell], list[float]] = defaultdict(list)
        """Seconds of steps, by link and cell."""

    def job(self, **told: Any) -> dict[str, Any]:
        """A job for ranks; arguments that are not given have empty defaults."""
        nothing: dict[str, Any] = {"messages": [], "cells": [], "apart": False}
        return {**nothing, "seed": self.seed, "rounds": self.rounds, **told}

    def small(self) -> None:
        """Measure what the model is fitted to: messages between two ranks, and steps of one rank."""
        for busy in (1, CORES):
            cells = [cell.as_json() for cell in FITTED]
            for one in said(LOOPBACK, busy, self.job(cells=cells, apart=True)):
                self.work[busy, Cell.from_json(one["cell"])].append(one["step_s"])
        for link in self.links:
            asked = [(c, *size) for c in COLLECTIVES for size in sizes(link, short=self.short)]
            for one in said(link, 2, self.job(messages=asked)):
                for clock in ("wall_s", "cpu_s"):
                    place = link, one["collective"], clock, one["bytes"]
                    self.messages[place].append(one[clock])

    def training(self) -> None:
        """Measure the steps that the model predicts."""
        for link in self.links:
            for ranks in RANKS:
                cells = [cell.as_json() for cell in predicted(link, ranks)]
                for one in said(link, ranks, self.job(cells=cells)):
                    self.steps[link, Cell.from_json(one["cell"])].append(one["step_s"])
                print(f"{ranks} ranks over {link}: measured", file=sys.stderr)

    def link(self, name: str) -> Link:
        """Fit the message times of a class of links."""

        def curve(collective: str, clock: str) -> Curve:
            return fit_curve(
                {
                    size: statistics.median(seconds)
                    for (link, of, by, size), seconds in self.messages.items()
                    if (link, of, by) == (name, collective, clock)
                }
            )

        return Link(
            curve("exchange", "wall_s"),
            curve("exchange", "cpu_s"),
            curve("allreduce", "wall_s"),
            curve("allreduce", "cpu_s"),
        )

    def kernels(self) -> Kernels:
        """Fit the times of work."""
        works = [of_cell(cell, self.seed)[0] for cell in FITTED]
        alone, beside = (
            fit_work(works, [statistics.median(self.work[busy, cell]) for cell in FITTED])
            for busy in (1, CORES)
        )
        return Kernels(alone, beside)


def answer(benchmark: common.Benchmark, measured: Measured) -> None:
    """Fit the model, compare its predictions with the measurements, and predict more ranks."""
    for (busy, cell), seconds in measured.work.items():
        ms = statistics.median(seconds) * 1e3
        benchmark.cells.append({"work": cell.name, "busy_cores": busy, "step_ms": ms})
    for (link, collective, clock, size), seconds in measured.messages.items():
        us = statistics.median(seconds) * 1e6
        place = {"message": collective, "link": link, "bytes": size, "clock": clock}
        benchmark.cells.append({**place, "us": us})
    kernels = measured.kernels()
    benchmark.cells.append({"fit": "kernels", **asdict(kernels)})
    errors: dict[tuple[str, int], list[float]] = defaultdict(list)
    for name in measured.links:
        link = measured.link(name)
        benchmark.cells.append({"fit": name, **asdict(link)})
        for (of, cell), seconds in measured.steps.items():
            if of != name:
                continue
            seen = common.Median.of(seconds)
            model = predict(kernels, link, cell, measured.seed, CORES)
            error = model.step_s / seen.value - 1
            errors[name, cell.ranks].append(error)
            figures = {"measured_ms": seen.value * 1e3, "spread": seen.spread, "error": error}
            benchmark.cells.append({"cell": cell.name, "link": name, **figures, **_parts(model)})
            print(
                f"{cell.name} over {name}: {seen.value * 1e3:.1f} ms, predicted {model.step_s * 1e3:.1f} ({error:+.0%})",
                file=sys.stderr,
            )
        if name != LOOPBACK:
            far(benchmark, kernels, name, link, measured.seed)
    for (name, ranks), found in errors.items():
        stem = f"r{ranks}_{name}"
        benchmark.summary[f"{stem}_error_median"] = statistics.median(map(abs, found))
        benchmark.summary[f"{stem}_error_most"] = max(map(abs, found))
        benchmark.summary[f"{stem}_within_20_percent"] = _within(found)
    benchmark.summary["all_within_20_percent"] = _within(
        error for found in errors.values() for error in found
    )
    held_out = (error for (_, ranks), found in errors.items() if ranks > 2 for error in found)
    benchmark.summary["held_out_within_20_percent"] = _within(held_out)


def far(benchmark: common.Benchmark, kernels: Kernels, name: str, link: Link, seed: int) -> None:
    """Predict the scaling for ranks that each have a core and a link of their own."""
    for cell in quick(2):
        stem = cell.name.split("_", 1)[1]
        steps = {
            ranks: predict(kernels, link, replace(cell, ranks=ranks), seed, ranks) for ranks in FAR
        }
        for ranks, step in steps.items():
            benchmark.cells.append({"model": stem, "link": name, "ranks": ranks, **_parts(step)})
        whole = scaling({ranks: step.step_s for ranks, step in steps.items()})
        rows = scaling({ranks: step.rows_s for ranks, step in steps.items()})
        for ranks in FAR[1:]:
            figure = f"model_{stem}_{name}_r{ranks}_over_r{FAR[0]}"
            benchmark.summary[figure] = whole[ranks]
            benchmark.summary[f"{figure}_without_sums"] = rows[ranks]


def _parts(step: Step) -> dict[str, float]:
    return {
        "predicted_ms": step.step_s * 1e3,
        "predicted_work_ms": step.work_s * 1e3,
        "predicted_exchanges_ms": step.exchanges_s * 1e3,
        "predicted_sums_ms": step.sums_s * 1e3,
    }


def _within(errors: Iterable[float]) -> float:
    found = [abs(error) <= 0.2 for error in errors]
    return sum(found) / len(found)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--links",
        default=",".join(LINKS),
        help="classes of links, separated by commas (default: all)",
    )
    parser.add_argument(
        "--passes", type=int, help="number of passes over all measurements (default: 5, quick: 2)"
    )
    arguments = parser.parse_args()
    links = arguments.links.split(",")
    if unknown := set(links) - set(LINKS):
        parser.error(f"--links: unknown {sorted(unknown)}; use {', '.join(LINKS)}")
    if links != [LOOPBACK] and (why := missing()):
        print(f"measuring over loopback only: {why}", file=sys.stderr)
        links = [LOOPBACK]
    benchmark = common.Benchmark(common.settings(arguments))
    short = benchmark.settings.quick
    seed, rounds = benchmark.settings.seed, 2 if short else 4
    measured = Measured(links, seed=seed, rounds=rounds, short=short)
    # Several passes, so that a noisy minute affects both the fit and the measured steps.
    for _ in range(arguments.passes or (2 if short else 5)):
        measured.small()
        measured.training()
    answer(benchmark, measured)
    benchmark.write()


if __name__ == "__main__":
    main()
