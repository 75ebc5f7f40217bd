"""How fast is training of knowledge-graph embeddings out of core?

ComplEx on a generated graph of the shape of Freebase, with row memory for a quarter of its rows, with triples in random
order and in BETA order of partitions. The rate is compared with the lower of two limits: the rate with all rows in
memory, and the rate at which the device can read the cold rows of a step. `--peers` runs the same loop over other
engines with the same memory. `--ranking` adds filtered ranking in a memory group of a quarter of the rows' bytes plus
1 GiB.
"""

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.kge_out_of_core.peer import load, peer_loop, rows_of
from benchmarks.kge_out_of_core.shape import Shape
from benchmarks.kge_out_of_core.stored import filled, training
from benchmarks.memory_group import memory_group
from benchmarks.peer_loop import add_arguments, opened_peers, patience_of
from benchmarks.peer_rows import KINDS, PeerRows
from benchmarks.rounds import Cell, Patience, counted, run_rounds
from benchmarks.training import LoadedTrainer, device_reads_per_s, wait_for_lookahead
from rowmill.config import StoreConfig
from rowmill.kge.graph import Graph
from rowmill.store import Store

SHARE = 4
"""Row memory is a fraction of the rows: 1 / this number."""
LEAD = 8
"""Unmeasured steps at the start of each round, at least; they use up prefetches from before other variants ran."""
LOOKAHEAD = 16
"""Default of --lookahead. After a swap of partitions, a step needs more new rows than the device can read in its time."""
_INDEX_BYTES = 24
"""Memory per row beyond its bytes: index and bookkeeping."""
_FIXED_BYTES = 64 << 20
ORDERS = {"shuffled": False, "partitions": True}


@dataclass(frozen=True)
class Size:
    """Sizes of the measurement."""

    shape: Shape
    in_memory: Shape
    patience: Patience
    steps: int
    warm_up: int
    peer_steps: int
    peer_warm_up: int
    ranked: int

    @property
    def row_memory(self) -> int:
        """Bytes of row memory: a quarter of the weights and optimizer state."""
        return self.shape.row_bytes // SHARE

    @property
    def memory(self) -> int:
        """Total memory budget of the store, or of a peer."""
        return self.row_memory + self.shape.entities * _INDEX_BYTES + _FIXED_BYTES

    def warm_up_of(self, order: str) -> int:
        """Unmeasured steps. With partitions the first buffer has many more buckets than later ones, so it is skipped."""
        if order == "shuffled":
            return self.warm_up
        first = self.shape.buffer**2 / self.shape.partitions**2
        return self.warm_up + int(first * self.shape.triples / self.shape.batch)


def size_of(patience: Patience, *, quick: bool, seed: int) -> Size:
    """10 M entities, 8 GB of weights and state; the quick form has a tenth of that."""
    shape = Shape(entities=1_000_000 if quick else 10_000_000, seed=seed)
    return Size(
        shape=shape,
        in_memory=replace(shape, entities=shape.entities // 5),
        patience=patience,
        # With partitions, about the steps of one buffer.
        steps=100 if quick else 480,
        warm_up=100 if quick else 600,
        peer_steps=30 if quick else 100,
        peer_warm_up=100 if quick else 600,
        ranked=100,
    )


class Run:
    """A running benchmark."""

    def __init__(
        self,
        benchmark: common.Benchmark,
        size: Size,
        folder: Path,
        *,
        threads: int,
        lookahead: int,
        probe: Callable[[Path, int], float],
    ) -> None:
        self.benchmark = benchmark
        self.size = size
        self.folder = folder
        self.threads = threads
        self.lookahead = lookahead
        self._probe = probe

    def train(self, graph: Graph, peers: Mapping[str, PeerRows]) -> None:
        """Run rounds of the store in both orders, with all rows in memory, and of peers."""
        size = self.size
        with ExitStack() as stack:
            for kind, rows in peers.items():
                say(f"{kind}: filling")
                load(rows, size.shape)
            store = stack.enter_context(self._filled("store", size.shape, graph, size.row_memory))
            few = size.in_memory
            few_graph = few.graph()
            all_rows = few.row_bytes + (few.row_bytes >> 2)
            warm = stack.enter_context(self._filled("in_memory", few, few_graph, all_rows))
            for order in ORDERS:
                say(f"{order}: warming up")
                self._rounds(order, graph, store, few_graph, warm, peers)
            self._note_store(store)
            store.checkpoint()
        gc.collect()

    def _filled(self, name: str, shape: Shape, graph: Graph, row_memory: int) -> Any:
        say(f"{name}: filling")
        config = shape.config(
            self.folder / name,
            partitioned=False,
            store=self._store_config(shape, row_memory),
            threads=self.threads,
        )
        return filled(config, shape, graph, threads=self.threads)

    def _store_config(self, shape: Shape, row_memory: int) -> StoreConfig:
        return StoreConfig(
            memory=str(row_memory + shape.entities * _INDEX_BYTES + _FIXED_BYTES),
            row_memory=str(row_memory),
            lookahead=self.lookahead,
        )

    def _rounds(
        self,
        order: str,
        graph: Graph,
        store: Store,
        few_graph: Graph,
        warm: Store,
        peers: Mapping[str, PeerRows],
    ) -> None:
        size = self.size

        def trainer(shape: Shape, graph: Graph, store: Store, lookahead: int) -> Any:
            config = shape.config(
                self.folder / "unused",
                partitioned=ORDERS[order],
                store=replace(self._store_config(shape, 0), lookahead=lookahead),
                threads=self.threads,
            )
            return training(config, graph, store)

        with ExitStack() as stack:
            quarter = stack.enter_context(trainer(size.shape, graph, store, self.lookahead))
            in_memory = stack.enter_context(trainer(size.in_memory, few_graph, warm, 0))
            variants = {
                f"{order}_quarter": quarter,
                f"{order}_blind": quarter.unannounced(),
                f"{order}_in_memory": in_memory,
            }
            loops = {
                f"{order}_{kind}": stack.enter_context(self._peer(order, kind, graph, rows))
                for kind, rows in peers.items()
            }
            in_memory.train(LEAD)
            quarter.train(size.warm_up_of(order))
            wait_for_lookahead(store)
            for loop in loops.values():
                loop.train(self._peer_warm_up(order))
            say(f"{order}: measuring")

            def probe(number: int) -> Cell:
                reads = self._probe(quarter.folder, number)
                return {"variant": f"{order}_probe", "round": number, "reads_per_s": reads}

            def of_variant(name: str) -> Callable[[int], Cell]:
                return lambda number: self._round(name, variants[name], number)

            def of_peer(name: str) -> Callable[[int], Cell]:
                return lambda number: loops[name].round(
                    name, number, steps=size.peer_steps, lead=LEAD
                )

            rounds = {f"{order}_probe": probe}
            rounds |= {name: of_variant(name) for name in variants}
            rounds |= {name: of_peer(name) for name in loops}
            run_rounds(self.benchmark, rounds, size.patience, name=f"{order}_")

    def _peer(self, order: str, kind: str, graph: Graph, rows: PeerRows) -> Any:
        return peer_loop(
            rows,
            self.size.shape,
            graph,
            self.folder / f"{kind}-{order}",
            partitioned=ORDERS[order],
            lookahead=self.lookahead,
            threads=self.threads,
        )

    def _round(self, name: str, trainer: LoadedTrainer, number: int) -> Cell:
        trainer.train(max(LEAD, 2 * self.lookahead))
        cell = trainer.round(name, number, steps=self.size.steps)
        # Its remaining prefetches would slow down the next variant.
        wait_for_lookahead(trainer.store)
        return cell

    def _note_store(self, store: Store) -> None:
        stats = store.stats()
        tables = stats["tables"].values()
        self.benchmark.summary |= {
            "entities": float(self.size.shape.entities),
            "live_row_bytes": float(sum(t["rows"] * t["row_bytes"] for t in tables)),
            "weights_and_state_bytes": float(self.size.shape.row_bytes),
            "row_memory": float(self.size.row_memory),
            "memory": float(self.size.memory),
            "index_bytes": float(stats["index_bytes"]),
            "overhead_bytes": float(stats["overhead_bytes"]),
        }

    def _peer_warm_up(self, order: str) -> int:
        extra = self.size.warm_up_of(order) - self.size.warm_up
        return self.size.peer_warm_up + extra

    def evaluate(self, graph: Graph) -> None:
        """Run the ranking in a process limited to a quarter of the rows' bytes plus 1 GiB, including its page cache."""
        size = self.size
        say("ranking")
        known, asked = self.folder / "known.npy", self.folder / "asked.npy"
        np.save(known, graph.train)
        np.save(asked, graph.test[: size.ranked])
        limit = size.row_memory + (1 << 30)
        # Inside the group, the store's whole budget, index included, is the quarter.
        memory = size.row_memory
        row_memory = memory - size.shape.entities * _INDEX_BYTES - _FIXED_BYTES
        script = Path(__file__).with_name("evaluation.py")
        words = [self.folder / "store/store", known, asked, memory, row_memory]
        with memory_group("ranking", limit) as group:
            done = subprocess.run(
                group.command([sys.executable, str(script), *map(str, words)]),
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            figures = {**json.loads(done.stdout), "most_bytes": group.most_bytes, "limit": limit}
        self.benchmark.cells.append({"variant": "ranking", **figures})
        for name in ("most_bytes", "limit", "wall_s", "triples", "mrr"):
            self.benchmark.summary[f"ranking_{name}"] = float(figures[name])


def summarize(benchmark: common.Benchmark, shape: Shape) -> None:
    """Add rates relative to the lower limit and to peers, per round; and energy."""
    benchmark.summary["watts_per_core_assumed"] = common.WATTS

    def cells(variant: str) -> list[Cell]:
        return counted(benchmark, variant)

    for order in ORDERS:
        own, memory = cells(f"{order}_quarter"), cells(f"{order}_in_memory")
        others = {name: cells(f"{order}_{name}") for name in ("blind", *KINDS)}
        sides = {"quarter": own, "in_memory": memory, **others}
        for name, found in sides.items():
            if found:
                rates = common.Median.of(cell["rows_per_s"] for cell in found)
                benchmark.summarize(f"{order}_{name}_triples_per_s", rates)
                joules = common.Median.of(
                    1e-6 * cell["cpu_us_per_row"] * shape.batch * common.WATTS for cell in found
                )
                benchmark.summarize(f"{order}_{name}_joules_per_batch", joules)
        for figure in ("hit_rate", "stall_share", "cold_rows_per_step", "distinct_rows_per_step"):
            benchmark.summarize(
                f"{order}_quarter_{figure}", common.Median.of(cell[figure] for cell in own)
            )
        limits = [
            probe["reads_per_s"] / max(cell["cold_rows_per_step"], 1e-9) * shape.batch
            for probe, cell in zip(cells(f"{order}_probe"), own, strict=True)
        ]
        benchmark.summarize(f"{order}_device_limit_triples_per_s", common.Median.of(limits))
        over = [
            cell["rows_per_s"] / min(limit, other["rows_per_s"])
            for cell, limit, other in zip(own, limits, memory, strict=True)
        ]
        benchmark.summarize(f"{order}_rate_over_limit", common.Median.of(over))
        for name, found in others.items():
            if found:
                over = [
                    cell["rows_per_s"] / other["rows_per_s"]
                    for cell, other in zip(own, found, strict=True)
                ]
                benchmark.summarize(f"{order}_rate_over_{name}", common.Median.of(over))


def say(line: str) -> None:
    """Print to the terminal (stderr), because stdout may hold the JSON."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = common.argument_parser(__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--ranking", action="store_true", help="also run filtered ranking in a memory group"
    )
    parser.add_argument(
        "--lookahead",
        type=int,
        default=LOOKAHEAD,
        help="number of batches to prefetch (default 16)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of the trainer (default 1)")
    parser.add_argument(
        "--folder", type=Path, default=common.REPOSITORY, help="folder for the stores"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    settings = benchmark.settings
    size = size_of(patience_of(arguments), quick=settings.quick, seed=settings.seed)
    torch.set_num_threads(arguments.threads)
    program = common.bench_program(arguments.peers)

    def probe(store: Path, number: int) -> float:
        return device_reads_per_s(program, store, seconds=1.0, seed=number)

    graph = size.shape.graph()
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=arguments.folder) as name:
        run = Run(
            benchmark,
            size,
            Path(name),
            threads=arguments.threads,
            lookahead=arguments.lookahead,
            probe=probe,
        )
        options = {
            "rows": rows_of(size.shape),
            "row_bytes": size.shape.dim * 2 * 4,
            "memory": size.memory,
        }
        with opened_peers(program, arguments.peers, Path(name), **options) as peers:
            run.train(graph, peers)
        if arguments.ranking:
            run.evaluate(graph)
    summarize(benchmark, size.shape)
    benchmark.write()


if __name__ == "__main__":
    main()
