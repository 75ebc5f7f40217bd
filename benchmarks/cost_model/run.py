"""Does a cost model fitted to one and two ranks predict training on two, three and four, whatever the placement of tables?

The model is fitted to messages between two ranks and to steps of one rank, alone and with other busy cores. It predicts
steps of `benchmarks/exchange` over loopback and over slow links, which are measured for comparison. Last, it predicts the
scaling of steps to 128 ranks that have their own cores, with planned placements and faster links. This is a prediction, not
a measurement.
"""

import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.cost_model.model import (
    Curve,
    Kernels,
    Kind,
    Link,
    Step,
    expected_distinct,
    fit_curve,
    fit_work,
    of_cell,
    predict,
    scaling,
)
from benchmarks.exchange.cells import CENTRE, FIVE, ONE, THREE, Cell, quick
from benchmarks.exchange.launch import ranks_say
from benchmarks.slow_links.links import missing, network
from rowmill.distributed import PlacementKind, plan_placements
from rowmill.distributed.cost import Speeds, TableLoad

RANK = Path(__file__).with_name("rank.py")
CORES = len(os.sched_getaffinity(0))
LOOPBACK = "loopback"
LINKS = (LOOPBACK, "1gbit", "100mbit")
RANKS = (2, 3, 4)
FAR = (8, 16, 32, 64, 128)
"""Numbers of ranks that are predicted only, because this machine has too few cores."""
FAR_GBIT = (1, 25, 200)
"""Rates of their links."""
PLACEMENTS: tuple[PlacementKind, ...] = ("rows", "pooled", "whole")
HELD_OUT: dict[str, tuple[PlacementKind, ...]] = {"rows": ("rows",), "vectors": ("pooled", "whole")}
"""Groups of placements; the steps of three and four ranks are summarized for each."""
WIDE = (128,)
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
"""Cells for the fit with one id per bag; no cell of a fit is predicted."""
FITTED_BAGS = tuple(
    Cell(1, categories, dims, batch, 1.05, bag)
    for categories, dims, batch, bag in (
        (4, WIDE, 1024, 16),
        (8, ONE, 1024, 16),
        (8, (64,), 512, 32),
        (8, WIDE, 128, 64),
        (16, ONE, 256, 64),
        (16, THREE, 512, 8),
        (16, (64,), 1024, 4),
        (32, ONE, 512, 4),
        (32, THREE, 256, 16),
        (32, (64,), 128, 32),
    )
)
"""Cells for the fit with more ids per bag."""
BAGS = tuple(
    # Numbers of tables that 2, 3 and 4 ranks share evenly.
    Cell(2, categories, dims, batch, 1.05, bag)
    for categories, dims, batch, bag in (
        (24, ONE, 512, 20),
        (12, (64,), 512, 50),
        (24, THREE, 1024, 10),
    )
)
"""Cells with more ids per bag that are both predicted and measured, with every placement."""
KINDS: dict[Kind, PlacementKind] = {"rows": "rows", "vectors": "pooled"}
"""The placement whose steps on one rank show the work of each kind."""
Placed = tuple[Cell, PlacementKind]


def fitted(kind: Kind) -> tuple[Cell, ...]:
    """Cells for the fit of one kind of work."""
    return FITTED_BAGS if kind == "vectors" else FITTED + FITTED_BAGS


def predicted(link: str, ranks: int) -> list[Placed]:
    """Cells and placements that are both predicted and measured."""
    if link == "100mbit":
        # A step of the other cells would take seconds.
        return [
            (replace(CENTRE, ranks=ranks), "rows"),
            (replace(CENTRE, ranks=ranks, dims=ONE), "rows"),
        ]
    bags = [replace(cell, ranks=ranks) for cell in BAGS]
    single: list[Placed] = [(cell, "rows") for cell in quick(ranks)]
    return [*single, *product(bags, PLACEMENTS)]


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
        self.work: dict[tuple[int, Kind, Cell], list[float]] = defaultdict(list)
        """Seconds of steps of one rank, by the number of busy cores, the kind of work and the cell."""
        self.steps: dict[tuple[str, PlacementKind, Cell], list[float]] = defaultdict(list)
        """Seconds of steps, by link, placement and cell."""

    def job(self, **told: Any) -> dict[str, Any]:
        """A job for ranks; arguments that are not given have empty defaults."""
        nothing: dict[str, Any] = {"messages": [], "cells": [], "apart": False}
        return {**nothing, "seed": self.seed, "rounds": self.rounds, **told}

    def small(self) -> None:
        """Measure what the model is fitted to: messages between two ranks, and steps of one rank."""
        for busy, (kind, placement) in product((1, CORES), KINDS.items()):
            cells = [(cell.as_json(), placement) for cell in fitted(kind)]
            for one in said(LOOPBACK, busy, self.job(cells=cells, apart=True)):
                self.work[busy, kind, Cell.from_json(one["cell"])].append(one["step_s"])
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
                cells = [(cell.as_json(), placement) for cell, placement in predicted(link, ranks)]
                for one in said(link, ranks, self.job(cells=cells)):
                    cell = Cell.from_json(one["cell"])
                    self.steps[link, one["placement"], cell].append(one["step_s"])
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

        def fit(busy: int) -> dict[Kind, tuple[float, ...]]:
            return {
                kind: fit_work(
                    [of_cell(cell, [placement]).work[kind] for cell in fitted(kind)],
                    [statistics.median(self.work[busy, kind, cell]) for cell in fitted(kind)],
                )
                for kind, placement in KINDS.items()
            }

        return Kernels(fit(1), fit(CORES))


def answer(benchmark: common.Benchmark, measured: Measured) -> None:
    """Fit the model, compare its predictions with the measurements, and predict more ranks."""
    for (busy, kind, cell), seconds in measured.work.items():
        ms = statistics.median(seconds) * 1e3
        place = {"work": cell.name, "kind": kind, "busy_cores": busy}
        benchmark.cells.append({**place, "step_ms": ms})
    for (link, collective, clock, size), seconds in measured.messages.items():
        us = statistics.median(seconds) * 1e6
        place = {"message": collective, "link": link, "bytes": size, "clock": clock}
        benchmark.cells.append({**place, "us": us})
    kernels = measured.kernels()
    benchmark.cells.append({"fit": "kernels", **asdict(kernels)})
    errors: dict[tuple[str, PlacementKind, int], list[float]] = defaultdict(list)
    for name in measured.links:
        link = measured.link(name)
        benchmark.cells.append({"fit": name, **asdict(link)})
        for (of, placement, cell), seconds in measured.steps.items():
            if of != name:
                continue
            seen = common.Median.of(seconds)
            model = predict(kernels, link, cell, [placement], CORES)
            error = model.step_s / seen.value - 1
            errors[name, placement, cell.ranks].append(error)
            place = {"cell": cell.name, "placement": placement, "link": name}
            figures = {"measured_ms": seen.value * 1e3, "spread": seen.spread, "error": error}
            benchmark.cells.append({**place, **figures, **_parts(model)})
            print(
                f"{cell.name}, {placement}, over {name}: {seen.value * 1e3:.1f} ms, predicted {model.step_s * 1e3:.1f} "
                f"({error:+.0%})",
                file=sys.stderr,
            )
    for (name, placement, ranks), found in errors.items():
        stem = f"r{ranks}_{name}_{placement}"
        benchmark.summary[f"{stem}_error_median"] = statistics.median(map(abs, found))
        benchmark.summary[f"{stem}_error_most"] = max(map(abs, found))
        benchmark.summary[f"{stem}_within_20_percent"] = _within(found)
    for title, wanted in HELD_OUT.items():
        found = [
            error
            for (_, placement, ranks), of in errors.items()
            if placement in wanted and ranks > 2
            for error in of
        ]
        benchmark.summary[f"{title}_held_out_within_20_percent"] = _within(found)
    benchmark.summary["all_within_20_percent"] = _within(
        error for found in errors.values() for error in found
    )
    far(benchmark, kernels, measured.link(LOOPBACK))


def far(benchmark: common.Benchmark, kernels: Kernels, loopback: Link) -> None:
    """Predict the scaling for ranks that each have a core and a link of their own, with planned placements."""
    for rate, cell in product(FAR_GBIT, (*quick(2), *BAGS)):
        link = loopback.limited(rate * 1e9 / 8)
        stem = f"{cell.name.split('_', 1)[1]}_{rate}gbit"
        steps: dict[int, Step] = {}
        for ranks in FAR:
            wide = replace(cell, ranks=ranks)
            placements = planned(wide, rate * 1e9 / 8)
            steps[ranks] = step = predict(kernels, link, wide, placements, ranks)
            kinds = dict(Counter(placements))
            place = {"model": stem, "ranks": ranks, "placements": kinds}
            benchmark.cells.append({**place, **_parts(step)})
        whole = scaling({ranks: step.step_s for ranks, step in steps.items()})
        rows = scaling({ranks: step.rows_s for ranks, step in steps.items()})
        for ranks in FAR[1:]:
            figure = f"model_{stem}_r{ranks}_over_r{FAR[0]}"
            benchmark.summary[figure] = whole[ranks]
            benchmark.summary[f"{figure}_without_sums"] = rows[ranks]


def planned(cell: Cell, link_bytes_per_s: float) -> list[PlacementKind]:
    """The placement of each category that `auto` plans."""
    ids = cell.batch * cell.bag
    distinct = expected_distinct(cell.zipf, ids)
    loads = [
        TableLoad(f"c{n}", cell.dims[n % len(cell.dims)], cell.batch, ids, distinct)
        for n in range(cell.categories)
    ]
    speeds = Speeds(link_bytes_per_s=link_bytes_per_s)
    plan = plan_placements(loads, cell.ranks, speeds=speeds)
    return [choice.placement.kind for choice in plan.choices]


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
