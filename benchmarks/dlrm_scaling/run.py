"""How much faster is a training step of DLRM with more ranks, for a constant global batch (strong) or local batch (weak)?

Runs `dlrm.py` with one thread per rank on one machine over loopback. A model adds a prediction for ranks that have their
own core and link; it uses the work of one rank measured here and the message times of `benchmarks/cost_model`. The
predictions have not been verified by measurement.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.cost_model.model import ID_BYTES, WEIGHT_BYTES, Curve, Link, Sends
from benchmarks.dlrm_scaling.backends import backend_environment, install
from benchmarks.dlrm_scaling.figures import summary
from benchmarks.dlrm_scaling.launch import run_ranks
from benchmarks.dlrm_scaling.random_batch import make_batch
from benchmarks.dlrm_scaling.settings import Settings

FITS = common.REPOSITORY / "benchmarks/results/cost_model.json"
LINK = "1gbit"
SOCKETS = (2, 4, 8, 16, 26)
"""Numbers of ranks for the model: those of the published results, and numbers in between."""


@dataclass(frozen=True)
class Ranks:
    """A number of ranks, and the backend of their messages."""

    count: int
    backend: str

    @property
    def name(self) -> str:
        """Its part of the names of metrics."""
        return f"r{self.count}" if self.backend == "gloo" else f"r{self.count}_{self.backend}"


ONE = Ranks(1, "gloo")


@dataclass(frozen=True)
class Cell:
    """One shape and one sweep."""

    settings: Settings
    ranks: tuple[int, ...] = (1, 2, 4)

    @property
    def name(self) -> str:
        """Prefix of the names of its metrics."""
        return f"{self.settings.config}_{self.settings.sweep}"


def shape(config: str, sweep: str, batch: int, scale: float) -> Settings:
    """Settings of a run with one rank."""
    return Settings(config=config, sweep=sweep, batch=batch, scale=scale, threads=1, comm="overlap")


CELLS = {
    cell.name: cell
    for cell in (
        Cell(shape("mlperf", "strong", 4096, 0.1)),
        Cell(shape("mlperf", "weak", 2048, 0.1)),
        Cell(shape("small", "strong", 2048, 0.1)),
        Cell(shape("small", "weak", 1024, 0.1)),
        # With four ranks, the layers and their training state would exceed the memory of this machine.
        Cell(shape("large", "strong", 512, 0.002), ranks=(1, 2)),
        Cell(shape("large", "weak", 256, 0.002), ranks=(1, 2)),
    )
}


def measure(
    benchmark: common.Benchmark, cell: Cell, backends: Sequence[str], *, rounds: int, steps: int
) -> dict[Ranks, list[dict[str, Any]]]:
    """Run all numbers of ranks with all backends in rounds with rotating order."""
    # One rank sends no messages.
    several = [Ranks(ranks, of) for ranks in cell.ranks if ranks > 1 for of in backends]
    kinds = [ONE, *several]
    found: dict[Ranks, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    large = cell.settings.config == "large"
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            settings = replace(
                cell.settings,
                ranks=kind.count,
                backend=kind.backend,
                steps=2 if large else steps,
                warmup=1 if large else 3,
                seed=benchmark.settings.seed,
            )
            run = run_of(settings)
            found[kind].append(run)
            benchmark.cells.append({"cell": cell.name, "ranks": kind.count, "round": number, **run})
            print(
                f"{cell.name}, {kind.count} ranks, {kind.backend}, round {number}: {run['step_ms']:.1f} ms per step, "
                f"{run['samples_per_s']:,.0f} samples per second",
                file=sys.stderr,
            )
    summarize(benchmark, cell, found)
    return found


def summarize(
    benchmark: common.Benchmark, cell: Cell, found: dict[Ranks, list[dict[str, Any]]]
) -> None:
    """Add medians, and per round the gain over one rank and the step time over that with gloo."""
    for kind, runs in found.items():
        stem = f"{cell.name}_{kind.name}"
        benchmark.summarize(f"{stem}_step_ms", common.Median.of(run["step_ms"] for run in runs))
        if kind.count > 1:
            pairs = zip(runs, found[ONE], strict=True)
            rates = [(run["samples_per_s"], one["samples_per_s"]) for run, one in pairs]
            gain = common.Median.of(mine / alone for mine, alone in rates)
            benchmark.summarize(f"{stem}_gain", gain)
        gloo = found.get(replace(kind, backend="gloo"), runs)
        if gloo is not runs:
            pairs = zip(runs, gloo, strict=True)
            ratio = common.Median.of(mine["step_ms"] / theirs["step_ms"] for mine, theirs in pairs)
            benchmark.summarize(f"{stem}_over_gloo_step", ratio)


def model(
    benchmark: common.Benchmark, cell: Cell, found: dict[Ranks, list[dict[str, Any]]]
) -> None:
    """Add the model's prediction for ranks with their own core and link."""
    one = sorted(found[ONE], key=lambda run: run["step_ms"])[len(found[ONE]) // 2]
    # Between two ranks, a ring allreduce sends as many bytes as the gradients have.
    layers = found[Ranks(2, "gloo")][0]["collectives"]["allreduce"]
    buckets = [layers["bytes"] / layers["rounds"]] * round(layers["rounds"])
    gains = modelled(cell.settings, one, buckets, fitted(LINK))
    for ranks, gain in gains.items():
        benchmark.summary[f"model_{cell.name}_{LINK}_r{ranks}_gain_over_r{SOCKETS[0]}"] = gain


def run_of(settings: Settings) -> dict[str, Any]:
    """Run the command once; returns its result without the per-rank details."""
    run = summary(settings, run_ranks(settings))
    del run["ranks"], run["losses"]
    return run


def fitted(name: str) -> Link:
    """Message times over a class of links, from the last result of the cost model."""
    cells = json.loads(FITS.read_text())["cells"]
    fit = next(cell for cell in cells if cell.get("fit") == name)
    parts = ("exchange", "exchange_cpu", "allreduce", "allreduce_cpu")
    return Link(*(Curve(**fit[part]) for part in parts))


def modelled(
    settings: Settings, one: dict[str, Any], buckets: Sequence[float], link: Link
) -> dict[int, float]:
    """Predict the speed-up of more ranks over the smallest number, if every message is waited for.

    Args:
        settings: Settings of the run.
        one: Result of the run on one rank. The dense optimizer does the same work on every rank; all other work is divided.
        buckets: Bytes of each allreduce.
        link: Message times.
    """
    steps: dict[int, float] = {}
    for ranks in SOCKETS:
        optimizer_s = one["phase_ms"]["optimizer"] / 1e3
        shared_s = sum(one["phase_ms"].values()) / 1e3 - optimizer_s
        sends = sends_of(settings, ranks, buckets)
        messages_s = link.exchanges_s(sends, ranks, ranks) + link.sums_s(sends, ranks, ranks)
        steps[ranks] = shared_s / ranks + optimizer_s + messages_s
    return {ranks: steps[SOCKETS[0]] / seconds for ranks, seconds in steps.items()}


def sends_of(settings: Settings, ranks: int, buckets: Sequence[float]) -> Sends:
    """The bytes that a rank sends per step, with the same number of samples on every rank."""
    of, samples = settings.shape, settings.samples
    part = slice(0, samples // ranks)
    batch = make_batch(of, "zipf", samples=samples, part=part, seed=settings.seed)
    counts = [lookups * (part.stop - part.start) for lookups in of.lookups]
    parts = torch.split(batch.ids.values, counts)
    distinct = sum(len(np.unique(ids.numpy())) for ids in parts)
    rows = WEIGHT_BYTES * of.dim * distinct
    return Sends(
        to_all=(ID_BYTES * distinct, rows, rows),
        to_each=(8.0 * (2 + len(of.rows)), 8.0),
        sums=tuple(buckets),
    )


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("cells", nargs="*", help="names of cells (default: all)")
    parser.add_argument(
        "--rounds", type=int, help="number of rounds per cell (default: 5, quick: 3)"
    )
    parser.add_argument(
        "--oneccl",
        action="store_true",
        help="run several ranks with oneCCL too, in the same rounds",
    )
    arguments = parser.parse_args()
    names: Sequence[str] = arguments.cells or list(CELLS)
    if unknown := set(names) - set(CELLS):
        parser.error(f"unknown cells {sorted(unknown)}; use {', '.join(CELLS)}")
    backends = ("gloo", "oneccl") if arguments.oneccl else ("gloo",)
    install(backends)
    for backend in backends:
        os.environ |= backend_environment(backend, "lo")
    benchmark = common.Benchmark(common.settings(arguments))
    quick = benchmark.settings.quick
    rounds = arguments.rounds or (3 if quick else 5)
    steps = 6 if quick else 20
    for name in names:
        cell = CELLS[name]
        runs = measure(benchmark, cell, backends, rounds=rounds, steps=steps)
        if cell.settings.sweep == "strong" and FITS.exists():
            model(benchmark, cell, runs)
        benchmark.keep()
    benchmark.write()


if __name__ == "__main__":
    main()
