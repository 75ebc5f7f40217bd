"""What do more ranks gain in a training step of DLRM, with the batch of all kept (strong), or that of each (weak)?

Runs of `dlrm.py` with one thread for each rank, on one machine over loopback. Beside them a model, of the work of one
rank as measured here and of messages as `benchmarks/cost_model` measured them: what ranks with a core and a link of their own
would gain, which has not been measured.
"""

import json
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
from benchmarks.dlrm_scaling.figures import summary
from benchmarks.dlrm_scaling.launch import run_ranks
from benchmarks.dlrm_scaling.random_batch import make_batch
from benchmarks.dlrm_scaling.settings import Settings

FITS = common.REPOSITORY / "benchmarks/results/cost_model.json"
LINK = "1gbit"
SOCKETS = (2, 4, 8, 16, 26)
"""Ranks of the model: those of the published figures, and between."""


@dataclass(frozen=True)
class Cell:
    """One shape and one sweep."""

    settings: Settings
    ranks: tuple[int, ...] = (1, 2, 4)

    @property
    def name(self) -> str:
        """As figures of it are called."""
        return f"{self.settings.config}_{self.settings.sweep}"


def shape(config: str, sweep: str, batch: int, scale: float) -> Settings:
    """A run of one rank."""
    return Settings(config=config, sweep=sweep, batch=batch, scale=scale, threads=1, comm="overlap")


CELLS = {
    cell.name: cell
    for cell in (
        Cell(shape("mlperf", "strong", 4096, 0.1)),
        Cell(shape("mlperf", "weak", 2048, 0.1)),
        Cell(shape("small", "strong", 2048, 0.1)),
        Cell(shape("small", "weak", 1024, 0.1)),
        # Layers of four ranks and what is needed to train them take as much memory as this machine has.
        Cell(shape("large", "strong", 512, 0.002), ranks=(1, 2)),
        Cell(shape("large", "weak", 256, 0.002), ranks=(1, 2)),
    )
}


def measure(
    benchmark: common.Benchmark, cell: Cell, *, rounds: int, steps: int
) -> dict[int, list[dict[str, Any]]]:
    """Numbers of ranks in rounds whose order turns."""
    found: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in cell.ranks}
    large = cell.settings.config == "large"
    for number in range(rounds):
        for ranks in cell.ranks if number % 2 == 0 else reversed(cell.ranks):
            settings = replace(
                cell.settings,
                ranks=ranks,
                steps=2 if large else steps,
                warmup=1 if large else 3,
                seed=benchmark.settings.seed,
            )
            run = run_of(settings)
            found[ranks].append(run)
            benchmark.cells.append({"cell": cell.name, "ranks": ranks, "round": number, **run})
            print(
                f"{cell.name}, {ranks} ranks, round {number}: {run['step_ms']:.1f} ms a step, "
                f"{run['samples_per_s']:,.0f} samples a second",
                file=sys.stderr,
            )
    for ranks, runs in found.items():
        step_ms = common.Median.of(run["step_ms"] for run in runs)
        benchmark.summarize(f"{cell.name}_r{ranks}_step_ms", step_ms)
        if ranks > 1:
            pairs = zip(runs, found[1], strict=True)
            rates = [(run["samples_per_s"], one["samples_per_s"]) for run, one in pairs]
            gain = common.Median.of(mine / alone for mine, alone in rates)
            benchmark.summarize(f"{cell.name}_r{ranks}_gain", gain)
    return found


def model(benchmark: common.Benchmark, cell: Cell, found: dict[int, list[dict[str, Any]]]) -> None:
    """What the model says of ranks with a core and a link of their own."""
    one = sorted(found[1], key=lambda run: run["step_ms"])[len(found[1]) // 2]
    # Of two ranks a ring sends as much as the layers have.
    layers = found[2][0]["collectives"]["allreduce"]
    buckets = [layers["bytes"] / layers["rounds"]] * round(layers["rounds"])
    gains = modelled(cell.settings, one, buckets, fitted(LINK))
    for ranks, gain in gains.items():
        benchmark.summary[f"model_{cell.name}_{LINK}_r{ranks}_gain_over_r{SOCKETS[0]}"] = gain


def run_of(settings: Settings) -> dict[str, Any]:
    """One run, as the command writes it, but for what each rank saw."""
    run = summary(settings, run_ranks(settings))
    del run["ranks"], run["losses"]
    return run


def fitted(name: str) -> Link:
    """What messages take over a class of links, by the last result of the cost model."""
    cells = json.loads(FITS.read_text())["cells"]
    fit = next(cell for cell in cells if cell.get("fit") == name)
    parts = ("exchange", "exchange_cpu", "allreduce", "allreduce_cpu")
    return Link(*(Curve(**fit[part]) for part in parts))


def modelled(
    settings: Settings, one: dict[str, Any], buckets: Sequence[float], link: Link
) -> dict[int, float]:
    """A model: how many times shorter a step of more ranks is than one of the fewest, each message waited for.

    Args:
        settings: Of the run.
        one: What it came to on one rank: the optimizer of layers has as much to do on every rank, all else its samples.
        buckets: Bytes of each allreduce.
        link: Of messages.
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
    """What a rank sends in a step, if all have as many samples."""
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
    parser.add_argument("--rounds", type=int, help="of each cell (default: 5, quick: 3)")
    arguments = parser.parse_args()
    names: Sequence[str] = arguments.cells or list(CELLS)
    if unknown := set(names) - set(CELLS):
        parser.error(f"no cells {sorted(unknown)}: there are {', '.join(CELLS)}")
    benchmark = common.Benchmark(common.settings(arguments))
    quick = benchmark.settings.quick
    rounds = arguments.rounds or (3 if quick else 5)
    steps = 6 if quick else 20
    found = {name: measure(benchmark, CELLS[name], rounds=rounds, steps=steps) for name in names}
    for name, runs in found.items():
        if CELLS[name].settings.sweep == "strong" and FITS.exists():
            model(benchmark, CELLS[name], runs)
    benchmark.write()


if __name__ == "__main__":
    main()
