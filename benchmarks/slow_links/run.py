"""How much message time does a training step hide over slow links, and what does oneCCL change?

Runs `benchmarks/dlrm_scaling/dlrm.py` with each rank in its own network namespace, joined by links of 1 Gbit/s and of
100 Mbit/s; cells of backends also run over loopback. Variants: each message waited for where it begins, or overlapped with
work; fp32 and bf16; communication threads on their own core, or on the compute cores; gloo and oneCCL; rows exchanged, or
placements planned. Needs root (`links.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.dlrm_scaling.backends import backend_environment, install
from benchmarks.slow_links.links import Network, missing, network

PROGRAM = common.REPOSITORY / "benchmarks/dlrm_scaling/dlrm.py"
PORT = "29713"
RUN_S_MAX = 600


@dataclass(frozen=True)
class Variant:
    """Flags of the command for one way to run a cell."""

    comm: str
    precision: str = "fp32"
    pin: str = "off"
    backend: str = "gloo"
    placement: str = "rows"

    @property
    def name(self) -> str:
        """The variant's part of the names of metrics: its flags, without defaults of the last three."""
        return "_".join(word for word in astuple(self) if word not in ("off", "gloo", "rows"))


WIDE = (Variant("blocking"), Variant("overlap"))
NARROW = (*WIDE, Variant("blocking", "bf16"), Variant("overlap", "bf16"))
BACKENDS = (
    *(
        Variant(comm, backend=backend, placement=placement)
        for backend, placement, comm in product(
            ("gloo", "oneccl"), ("rows", "auto"), ("blocking", "overlap")
        )
    ),
    *(
        Variant("overlap", pin=pin, backend=backend)
        for backend, pin in product(("gloo", "oneccl"), ("apart", "together"))
    ),
)
WIRE = tuple(
    Variant("blocking", precision, backend=backend)
    for backend, precision in product(("gloo", "oneccl"), ("fp32", "bf16"))
)
PINNED = (
    Variant("blocking", pin="apart"),
    Variant("overlap", pin="apart"),
    Variant("overlap", pin="together"),
)


UNLIMITED = "unlimited"
"""Stands for a rate: ranks have no namespaces, and messages pass loopback."""


@dataclass(frozen=True)
class Cell:
    """A model and a batch over links of one rate; `UNLIMITED`: over loopback."""

    config: str
    ranks: int
    rate: str
    samples: int = 2048
    """Samples per rank."""
    variants: tuple[Variant, ...] = NARROW
    steps: int = 20
    """Steps of a run in the full form."""
    suffix: str = ""
    """End of the name, to tell cells with other variants apart."""

    @property
    def name(self) -> str:
        """The cell's part of the names of metrics."""
        return f"{self.config}_{self.samples}x{self.ranks}_{self.rate}{self.suffix}"


CELLS = (
    Cell("mlperf", 2, "1gbit", variants=NARROW + PINNED),
    Cell("mlperf", 4, "1gbit", variants=NARROW + PINNED),
    Cell("mlperf", 2, "100mbit", steps=4),
    Cell("mlperf", 4, "100mbit", steps=4),
    # The published batch for strong scaling, 16384.
    Cell("mlperf", 2, "1gbit", 8192, WIDE),
    Cell("mlperf", 4, "1gbit", 4096, WIDE),
    Cell("small", 2, "1gbit"),
    *(
        Cell(config, 2, rate, samples, BACKENDS, suffix="_backends")
        for (config, samples), rate in product(
            (("small", 1024), ("mlperf", 2048)), ("1gbit", UNLIMITED)
        )
    ),
    *(
        Cell("mlperf", ranks, rate, variants=WIRE, steps=steps, suffix="_wire")
        for ranks, (rate, steps) in product((2, 4), (("1gbit", 20), ("100mbit", 4)))
    ),
)
QUICK = tuple(cell.name for cell in CELLS[:4])
SCALE = "0.01"
"""Fraction of the rows of tables; the largest tables then have 400 thousand rows."""
FIGURES = ("step_ms", "exposed_ms", "messages_ms", "work_ms")


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "cells", nargs="*", help="names of cells (default: all; with --quick: four)"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds per cell (default 5, quick 3)")
    arguments = parser.parse_args()
    if why := missing():
        print(f"skipped: {why}", file=sys.stderr)
        return
    names = {cell.name: cell for cell in CELLS}
    if unknown := set(arguments.cells) - set(names):
        parser.error(f"unknown cells {sorted(unknown)}; use {', '.join(names)}")
    cells = [names[name] for name in arguments.cells or (QUICK if arguments.quick else names)]
    install({variant.backend for cell in cells for variant in cell.variants})
    benchmark = common.Benchmark(common.settings(arguments))
    quick = benchmark.settings.quick
    for cell in cells:
        compare(
            benchmark,
            cell,
            rounds=arguments.rounds or (3 if quick else 5),
            steps=min(cell.steps, 6) if quick else cell.steps,
        )
        benchmark.keep()
    benchmark.write()


def compare(benchmark: common.Benchmark, cell: Cell, *, rounds: int, steps: int) -> None:
    """Run all variants in rounds with rotating order; raise if losses differ that must be equal."""
    found: dict[Variant, list[dict[str, float]]] = {variant: [] for variant in cell.variants}
    losses: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for variant in cell.variants if number % 2 == 0 else reversed(cell.variants):
            limited = cell.rate != UNLIMITED
            with network(cell.ranks, cell.rate) if limited else nullcontext() as made:
                run = run_ranks(made, cell, variant, steps=steps, seed=benchmark.settings.seed)
            seen = figures(run)
            found[variant].append(seen)
            # Overlap, pinning and, between two ranks, the backend do not change a bit.
            key = variant.precision, variant.placement
            if losses.setdefault(key, run["losses"]) != run["losses"]:
                raise SystemExit(
                    f"{cell.name}: losses of {variant.name} differ from those of earlier variants"
                )
            del run["ranks"], run["losses"]
            described = {"cell": cell.name, "variant": variant.name, "round": number}
            benchmark.cells.append({**described, **seen, **run})
            print(
                f"{cell.name}, {variant.name}, round {number}: {seen['step_ms']:.1f} ms per step, "
                f"{seen['exposed_ms']:.1f} ms of it waiting",
                file=sys.stderr,
            )
    summarize(benchmark, cell, found)


def figures(run: dict[str, Any]) -> dict[str, float]:
    """Milliseconds per step: total, waiting for messages, messages in flight, and work."""
    return {
        "step_ms": run["step_ms"],
        "exposed_ms": run["exposed_ms"],
        "messages_ms": sum(one["total_ms"] for one in run["collectives"].values()),
        "work_ms": sum(run["phase_ms"].values()),
    }


def summarize(
    benchmark: common.Benchmark, cell: Cell, found: dict[Variant, list[dict[str, float]]]
) -> None:
    """Add medians, and for two variants that differ in one flag their ratio, per round."""
    for variant, rounds in found.items():
        for figure in FIGURES:
            median = common.Median.of(seen[figure] for seen in rounds)
            benchmark.summarize(f"{cell.name}_{variant.name}_{figure}", median)
    for base, other in combinations(found, 2):
        if differences(base, other) != 1:
            continue
        for figure in FIGURES:
            pairs = zip(found[other], found[base], strict=True)
            ratio = common.Median.of(mine[figure] / theirs[figure] for mine, theirs in pairs)
            name = f"{cell.name}_{other.name}_over_{base.name}_{figure.removesuffix('_ms')}"
            benchmark.summarize(name, ratio)


def differences(one: Variant, other: Variant) -> int:
    """Number of flags in which two variants differ."""
    return sum(a != b for a, b in zip(astuple(one), astuple(other), strict=True))


def run_ranks(
    made: Network | None, cell: Cell, variant: Variant, *, steps: int, seed: int
) -> dict[str, Any]:
    """Run once with each rank in its namespace, or without any, with the variables that `torchrun` would set."""
    interface = "lo" if made is None else made.interface
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        command = [sys.executable, str(PROGRAM)]
        command += ["--config", cell.config, "--scale", SCALE, "--sweep", "weak"]
        command += ["--batch", str(cell.samples), "--comm", variant.comm, "--pin", variant.pin]
        command += ["--precision", variant.precision, "--steps", str(steps), "--warmup", "3"]
        command += ["--backend", variant.backend, "--placement", variant.placement]
        command += ["--seed", str(seed), "--out", folder]
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(cell.ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                environment = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(cell.ranks),
                    # All ranks share the cores of this machine.
                    "LOCAL_WORLD_SIZE": str(cell.ranks),
                    "MASTER_ADDR": "127.0.0.1" if made is None else made.addresses[0],
                    "MASTER_PORT": PORT,
                    **backend_environment(variant.backend, interface),
                }
                with log.open("w") as out:
                    processes.append(
                        subprocess.Popen(
                            command if made is None else made.command(rank, command),
                            env={**os.environ, **environment},
                            stdout=out,
                            stderr=out,
                        )
                    )
            codes = [process.wait(RUN_S_MAX) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            said = "\n".join(log.read_text() for log in logs)
            raise SystemExit(f"{cell.name}, {variant.name}: ranks ended with codes {codes}\n{said}")
        report = json.loads((Path(folder) / "dlrm.json").read_text())
    return report["runs"][0]


if __name__ == "__main__":
    main()
