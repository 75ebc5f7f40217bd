"""Can one out-of-core process replace two that hold all rows in memory?

GraphSAGE with learned embeddings on generated graphs of the shapes of eBay-Trisk (256 weights per row) and eBay-Payout
(768). The trainer of `rowmill train --task gnn` has row memory for a quarter of the rows, with and without lookahead, on
one core and on two. It is compared with distributed data parallel training in two processes, with one core and half of
the rows each.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.risk_graphs.shape import Shape, payout, trisk
from benchmarks.training import LoadedTrainer
from rowmill.config import StoreConfig
from rowmill.gnn.task import NodeTask
from rowmill.train.run import Trainer, open_trainer

SHARE = 4
"""Row memory is a fraction of the rows: 1 / this number."""
WORLD = 2
LOOKAHEAD = 60
"""Default of --lookahead. Announced rows stay in memory, so with more batches fewer rows are read twice."""
LEAD = 8
"""Unmeasured steps at the start of each round, at least; they use up prefetches from before other variants ran."""
_FIXED_BYTES = 128 << 20
"""Memory for index, bookkeeping and buffers."""
_PUT_ROWS = 4096


class Replicas:
    """The two processes that share the rows."""

    def __init__(self, processes: "list[subprocess.Popen[str]]") -> None:
        self._processes = processes

    def train(self, steps: int) -> dict[str, float]:
        """Train this many steps in each process; returns the sums over both, and the time of the slower one."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
        answers: list[dict[str, float]] = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        added = ("units", "cpu_s", "resident_bytes")
        summed = {name: sum(answer[name] for answer in answers) for name in added}
        return summed | {"wall_s": max(answer["wall_s"] for answer in answers)}


@contextmanager
def replicas(shape: Shape, data: Path, folder: Path) -> Generator[Replicas]:
    """Start two processes that hold all rows together."""
    script = Path(__file__).with_name("replicas.py")
    words = [folder / "rendezvous", data, shape.dim, shape.batch, shape.seed]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(script), str(rank), *map(str, words)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(WORLD)
        ]
        yield Replicas(processes)


@contextmanager
def out_of_core(shape: Shape, data: Path, out: Path, lookahead: int) -> Generator[LoadedTrainer]:
    """The product's trainer with all rows in its store."""
    row_memory = shape.row_bytes // SHARE
    store = StoreConfig(
        memory=str(row_memory + _FIXED_BYTES), row_memory=str(row_memory), lookahead=lookahead
    )
    config = shape.config(data, out, store=store, threads=1)
    with open_trainer(config, Console(quiet=True)) as trainer:
        assert isinstance(trainer.task, NodeTask)
        table = trainer.task.table
        for start in range(0, shape.nodes, _PUT_ROWS):
            ids = np.arange(start, min(start + _PUT_ROWS, shape.nodes))
            table.put(ids, table.get(ids))
        with closing(_epochs(trainer)) as steps:
            yield LoadedTrainer(trainer, steps)


def _epochs(trainer: Trainer) -> Generator[tuple[Any, Any]]:
    """Steps of consecutive epochs, without end."""
    while True:
        yield from trainer.steps(0)
        trainer.state.epoch, trainer.state.row = trainer.state.epoch + 1, 0


def pin(cores: Iterable[int]) -> None:
    """Restrict all threads of this process to these cores."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


class Run:
    """A running benchmark."""

    def __init__(
        self, benchmark: common.Benchmark, *, rounds: int, steps: int, warm_up: int
    ) -> None:
        self.benchmark = benchmark
        self.rounds = rounds
        self.steps = steps
        self.warm_up = warm_up

    def measure(self, name: str, shape: Shape, folder: Path, *, lookahead: int) -> None:
        """Run rounds of all variants on one graph."""
        data = folder / f"{name}.npz"
        shape.write(data)
        say(f"{name}: filling")
        with (
            out_of_core(shape, data, folder / name, lookahead) as own,
            replicas(shape, data, folder) as both,
        ):
            own.train(self.warm_up)
            both.train(LEAD)
            for number in range(self.rounds):
                self._round(name, own, both, number, lead=max(LEAD, 2 * lookahead))
        self._summarize(name, shape)

    def _round(
        self, name: str, own: LoadedTrainer, both: Replicas, number: int, *, lead: int
    ) -> None:
        cores = sorted(os.sched_getaffinity(0))
        variants = {
            "one_core": (own, cores[:1]),
            "two_cores": (own, cores),
            "blind": (own.unannounced(), cores[:1]),
            "replicas": (both, cores),
        }
        names = list(variants)
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            trainer, given = variants[variant]
            pin(given)
            trainer.train(LEAD if trainer is both else lead)
            if isinstance(trainer, Replicas):
                cell: dict[str, Any] = {**trainer.train(self.steps), "round": number}
                cell["rows_per_s"] = cell["units"] / cell["wall_s"]
            else:
                cell = trainer.round("", number, steps=self.steps)
            pin(cores)
            say(f"{name}, {variant}, round {number}: {cell['rows_per_s']:,.0f}/s")
            self.benchmark.cells.append({**cell, "variant": f"{name}_{variant}"})

    def _summarize(self, name: str, shape: Shape) -> None:
        benchmark = self.benchmark

        def figures(variant: str, figure: str) -> list[float]:
            cells = [c for c in benchmark.cells if c["variant"] == f"{name}_{variant}"]
            return [float(str(cell[figure])) for cell in cells]

        rates: dict[str, list[float]] = {}
        for variant in ("one_core", "two_cores", "blind", "replicas"):
            rates[variant] = figures(variant, "rows_per_s")
            benchmark.summarize(f"{name}_{variant}_nodes_per_s", common.Median.of(rates[variant]))
            used = zip(figures(variant, "cpu_s"), figures(variant, "units"), strict=True)
            joules = common.Median.of(
                common.WATTS * shape.batch * cpu_s / units for cpu_s, units in used
            )
            benchmark.summarize(f"{name}_{variant}_joules_per_batch", joules)
        for variant, other in (
            ("one_core", "replicas"),
            ("two_cores", "replicas"),
            ("one_core", "blind"),
        ):
            pairs = zip(rates[variant], rates[other], strict=True)
            benchmark.summarize(
                f"{name}_{variant}_over_{other}", common.Median.of(a / b for a, b in pairs)
            )
        for figure in ("cold_rows_per_step", "distinct_rows_per_step", "stall_share"):
            found = common.Median.of(figures("one_core", figure))
            benchmark.summarize(f"{name}_one_core_{figure}", found)
        benchmark.summary[f"{name}_nodes"] = shape.nodes
        benchmark.summary[f"{name}_row_bytes"] = shape.row_bytes


def say(line: str) -> None:
    """Print to the terminal (stderr), because stdout may hold the JSON."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--lookahead",
        type=int,
        default=LOOKAHEAD,
        help=f"number of batches to prefetch (default {LOOKAHEAD})",
    )
    parser.add_argument(
        "--folder", type=Path, default=common.REPOSITORY, help="folder for the stores"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    nodes, batch = (200_000, 256) if quick else (1_000_000, 512)
    shapes = {"trisk": trisk(nodes, batch, seed), "payout": payout(nodes // 4, batch // 2, seed)}
    run = Run(benchmark, rounds=3, steps=20 if quick else 30, warm_up=20 if quick else 60)
    for name, shape in shapes.items():
        with tempfile.TemporaryDirectory(prefix="rowmill-", dir=arguments.folder) as folder:
            run.measure(name, shape, Path(folder), lookahead=arguments.lookahead)
    benchmark.summary["watts_per_core_assumed"] = common.WATTS
    for name in shapes:
        say(
            f"{name}: {benchmark.summary[f'{name}_one_core_over_replicas']:.3f} of the rate of two processes"
        )
    benchmark.write()


if __name__ == "__main__":
    main()
