"""How much of the time of messages does a step hide, where links are slow?

`benchmarks/dlrm_scaling/dlrm.py` on ranks that each have a network namespace, joined by links of 1 Gbit/s and of 100 Mbit/s: with every
message waited for where it begins, and with messages behind work; in fp32 and in bf16; with the threads that carry messages on
a core of their own, and on that of work. Needs root (`links.py`).
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import astuple, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.slow_links.links import Network, missing, network

PROGRAM = common.REPOSITORY / "benchmarks/dlrm_scaling/dlrm.py"
PORT = "29713"
RUN_S_MAX = 600


@dataclass(frozen=True)
class Variant:
    """A way to run a cell: flags of the command."""

    comm: str
    precision: str = "fp32"
    pin: str = "off"

    @property
    def name(self) -> str:
        """As figures of it are called."""
        return "_".join(word for word in (self.comm, self.precision, self.pin) if word != "off")


WIDE = (Variant("blocking"), Variant("overlap"))
NARROW = (*WIDE, Variant("blocking", "bf16"), Variant("overlap", "bf16"))
PINNED = (
    Variant("blocking", pin="apart"),
    Variant("overlap", pin="apart"),
    Variant("overlap", pin="together"),
)


@dataclass(frozen=True)
class Cell:
    """What is run over links of one rate."""

    config: str
    ranks: int
    rate: str
    samples: int = 2048
    """Of each rank."""
    variants: tuple[Variant, ...] = NARROW
    steps: int = 20
    """Of a run, not in the quick form."""

    @property
    def name(self) -> str:
        """As figures of it are called."""
        return f"{self.config}_{self.samples}x{self.ranks}_{self.rate}"


CELLS = (
    Cell("mlperf", 2, "1gbit", variants=NARROW + PINNED),
    Cell("mlperf", 4, "1gbit", variants=NARROW + PINNED),
    Cell("mlperf", 2, "100mbit", steps=4),
    Cell("mlperf", 4, "100mbit", steps=4),
    # The published batch of strong scaling, 16384.
    Cell("mlperf", 2, "1gbit", 8192, WIDE),
    Cell("mlperf", 4, "1gbit", 4096, WIDE),
    Cell("small", 2, "1gbit"),
)
QUICK = tuple(cell.name for cell in CELLS[:4])
SCALE = "0.01"
"""Share of the rows of tables: the largest have 400 thousand."""
FIGURES = ("step_ms", "exposed_ms", "messages_ms", "work_ms")


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "cells", nargs="*", help="names of cells; all by default, four with --quick"
    )
    parser.add_argument("--rounds", type=int, help="of each cell; 3 with --quick, else 5")
    arguments = parser.parse_args()
    if why := missing():
        print(f"not measured: {why}", file=sys.stderr)
        return
    names = {cell.name: cell for cell in CELLS}
    if unknown := set(arguments.cells) - set(names):
        parser.error(f"no cells {sorted(unknown)}: there are {', '.join(names)}")
    benchmark = common.Benchmark(common.settings(arguments))
    quick = benchmark.settings.quick
    for name in arguments.cells or (QUICK if quick else names):
        cell = names[name]
        compare(
            benchmark,
            cell,
            rounds=arguments.rounds or (3 if quick else 5),
            steps=min(cell.steps, 6) if quick else cell.steps,
        )
    benchmark.write()


def compare(benchmark: common.Benchmark, cell: Cell, *, rounds: int, steps: int) -> None:
    """All variants in rounds whose order turns; raises if the losses of two differ that must not."""
    found: dict[Variant, list[dict[str, float]]] = {variant: [] for variant in cell.variants}
    losses: dict[str, list[float]] = {}
    for number in range(rounds):
        for variant in cell.variants if number % 2 == 0 else reversed(cell.variants):
            with network(cell.ranks, cell.rate) as made:
                run = run_ranks(made, cell, variant, steps=steps, seed=benchmark.settings.seed)
            seen = figures(run)
            found[variant].append(seen)
            # Neither overlap nor pinning changes a bit; narrow numbers do.
            if losses.setdefault(variant.precision, run["losses"]) != run["losses"]:
                raise SystemExit(f"{cell.name}: losses of {variant.name} differ from those before")
            del run["ranks"], run["losses"]
            described = {"cell": cell.name, "variant": variant.name, "round": number}
            benchmark.cells.append({**described, **seen, **run})
            print(
                f"{cell.name}, {variant.name}, round {number}: {seen['step_ms']:.1f} ms a step, "
                f"{seen['exposed_ms']:.1f} of them waiting",
                file=sys.stderr,
            )
    summarize(benchmark, cell, found)


def figures(run: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a step: all, waiting for messages, messages on their way, and work."""
    return {
        "step_ms": run["step_ms"],
        "exposed_ms": run["exposed_ms"],
        "messages_ms": sum(one["total_ms"] for one in run["collectives"].values()),
        "work_ms": sum(run["phase_ms"].values()),
    }


def summarize(
    benchmark: common.Benchmark, cell: Cell, found: dict[Variant, list[dict[str, float]]]
) -> None:
    """Medians, and of two variants that differ in one thing one over the other, round by round."""
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
    """In how many things two variants differ."""
    return sum(a != b for a, b in zip(astuple(one), astuple(other), strict=True))


def run_ranks(
    made: Network, cell: Cell, variant: Variant, *, steps: int, seed: int
) -> dict[str, Any]:
    """One run, a rank in each namespace, told who they are as `torchrun` would tell them."""
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        command = [sys.executable, str(PROGRAM)]
        command += ["--config", cell.config, "--scale", SCALE, "--sweep", "weak"]
        command += ["--batch", str(cell.samples), "--comm", variant.comm, "--pin", variant.pin]
        command += ["--precision", variant.precision, "--steps", str(steps), "--warmup", "3"]
        command += ["--seed", str(seed), "--out", folder]
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(cell.ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                environment = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(cell.ranks),
                    # They share the cores of one machine.
                    "LOCAL_WORLD_SIZE": str(cell.ranks),
                    "MASTER_ADDR": made.addresses[0],
                    "MASTER_PORT": PORT,
                    "GLOO_SOCKET_IFNAME": made.interface,
                }
                with log.open("w") as out:
                    processes.append(
                        subprocess.Popen(
                            made.command(rank, command),
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
            raise SystemExit(f"{cell.name}, {variant.name}: ranks ended with {codes}\n{said}")
        report = json.loads((Path(folder) / "dlrm.json").read_text())
    return report["runs"][0]


if __name__ == "__main__":
    main()
