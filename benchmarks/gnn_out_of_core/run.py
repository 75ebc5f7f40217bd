"""What does less memory cost a graph neural network whose features are rows of a store?

GraphSAGE on a generated graph of the shape of papers100M, with memory for a quarter of the features, with lookahead and
without: beside the lower of two limits (the rate with all rows in memory, what the device gives over the cold rows of a
step), and beside the same loop over RocksDB in the same memory.
"""

import gc
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.gnn_out_of_core.peer import PeerLoop, load
from benchmarks.gnn_out_of_core.shape import DIM, FANOUTS, Shape
from benchmarks.gnn_out_of_core.stored import training
from benchmarks.out_of_core.generated import LEAD, one_round, summarize
from benchmarks.peer_rows import PeerRows, measure, peer_rows
from benchmarks.training import LoadedTrainer, device_reads_per_s, wait_for_lookahead
from rowmill.config import StoreConfig
from rowmill.data import Features, NodeGraph, NodeSplit
from rowmill.gnn import NeighbourSampler, NodeBatches
from rowmill.train.nodes import NodeTask
from rowmill.train.rows import open_rows

SHARE = 4
"""Memory for one row in so many."""
PEER_THREADS = 16
"""As many reads of a peer that waits for each as keep the device busy."""
LOOKAHEAD = 60
"""What is announced so far ahead stays in memory if it is there: the more batches, the fewer rows are read twice."""
_INDEX_BYTES = 16
"""Room of the budget for each row beyond its bytes: index and bookkeeping."""
_FIXED_BYTES = 64 << 20


@dataclass(frozen=True)
class Size:
    """How much is measured. The graph whose rows are all in memory is smaller, its samples are of equal shape."""

    shape: Shape
    in_memory: Shape
    rounds: int
    steps: int
    warm_up: int
    peer_steps: int
    peer_warm_up: int

    @property
    def row_memory(self) -> int:
        """For a quarter of the features."""
        return self.shape.feature_bytes // SHARE

    @property
    def memory(self) -> int:
        """For everything the store or its peer keeps in memory."""
        return _memory(self.shape, self.row_memory)

    @property
    def keys_max(self) -> int:
        """Nodes of a batch, of which no two layers share one, and of none more."""
        nodes = self.shape.batch
        most = nodes
        for fanout in FANOUTS:
            nodes *= fanout
            most += nodes
        return most


def size_of(*, quick: bool, seed: int, rounds: int | None = None) -> Size:
    """2^24 nodes, 8.6 GB of features; the quick form has a sixteenth of that, and fewer rounds unless told."""
    shape = Shape(bits=20 if quick else 24, batch=256 if quick else 1024, seed=seed)
    return Size(
        shape=shape,
        in_memory=replace(shape, bits=shape.bits - 2),
        rounds=rounds or (3 if quick else 5),
        steps=20,
        warm_up=40,
        peer_steps=5 if quick else 10,
        peer_warm_up=40,
    )


class Run:
    """A benchmark on its way."""

    def __init__(
        self,
        benchmark: common.Benchmark,
        size: Size,
        *,
        threads: int,
        lookahead: int,
        probe: Callable[[Path, int], float],
    ) -> None:
        self.benchmark = benchmark
        self.size = size
        self.threads = threads
        self.lookahead = lookahead
        self._probe = probe

    def train(self, graph: NodeGraph, folder: Path) -> None:
        """Rounds of the device's probe, of a quarter with and without lookahead, and of memory for all."""
        size, variants = self.size, dict[str, LoadedTrainer]()
        with ExitStack() as stack:

            def made(name: str, shape: Shape, graph: NodeGraph, row_memory: int) -> LoadedTrainer:
                say(f"{name}: filling")
                store = StoreConfig(
                    memory=str(_memory(shape, row_memory)),
                    row_memory=str(row_memory),
                    lookahead=self.lookahead if name == "quarter" else 0,
                )
                config = shape.config(folder / name, store=store, threads=self.threads)
                return stack.enter_context(training(config, shape, graph, threads=self.threads))

            few = size.in_memory
            all_rows = few.feature_bytes + (few.feature_bytes >> 2)
            variants["quarter"] = made("quarter", size.shape, graph, size.row_memory)
            # What is not written yet would be written while it is measured.
            variants["quarter"].store.checkpoint()
            variants["blind"] = variants["quarter"].unannounced()
            variants["in_memory"] = made("in_memory", few, few.graph(folder), all_rows)
            say("warming up")
            variants["quarter"].train(size.warm_up)
            variants["in_memory"].train(LEAD)
            say("measuring")
            for number in range(size.rounds):
                self._round(variants, number)
            self._note_store(variants["quarter"])

    def _round(self, variants: dict[str, LoadedTrainer], number: int) -> None:
        quarter = variants["quarter"]
        wait_for_lookahead(quarter.store)
        device = self._probe(quarter.folder, number)
        # What was announced before other variants ran is used up, and what follows announced in step.
        lead = max(LEAD, 2 * self.lookahead)
        leads = {"quarter": lead, "blind": lead}
        one_round(
            self.benchmark, variants, number, steps=self.size.steps, device=device, leads=leads
        )

    def _note_store(self, trainer: LoadedTrainer) -> None:
        stats = trainer.store.stats()
        self.benchmark.summary |= {
            "nodes": float(self.size.shape.nodes),
            "feature_bytes": float(self.size.shape.feature_bytes),
            "row_memory": float(self.size.row_memory),
            "memory": float(self.size.memory),
            "index_bytes": float(stats["index_bytes"]),
            "overhead_bytes": float(stats["overhead_bytes"]),
        }

    def train_peer(self, graph: NodeGraph, rows: PeerRows, folder: Path) -> None:
        """The same loop over a peer."""
        size = self.size
        # Whose model it is: that of a graph of few nodes is as large.
        tiny = replace(size.shape, bits=12)
        store_config = StoreConfig(memory="64MiB")
        config = tiny.config(folder / "model", store=store_config, threads=self.threads)
        with open_rows(config, threads=1, identity={}) as store:
            features = Features(DIM, dense=tiny.features(0, tiny.nodes))
            tiny_graph = replace(tiny.graph(folder), features=features)
            nodes = tiny.train_nodes()
            split = NodeSplit(nodes, nodes, nodes)
            task = NodeTask(config, tiny_graph, split, store, {}, Console(quiet=True))
            batches = NodeBatches(
                NeighbourSampler(
                    graph.indptr, graph.indices, fanouts=FANOUTS, seed=size.shape.seed
                ),
                size.shape.train_nodes(),
                graph.labels,
                batch=size.shape.batch,
                seed=size.shape.seed,
            )
            loop = PeerLoop(rows, task, batches.epoch(0))
            say("rocksdb: warming up")
            loop.train(size.peer_warm_up)
            say("rocksdb: measuring")
            for number in range(size.rounds):
                self._peer_round(loop, rows, number)

    def _peer_round(self, loop: PeerLoop, rows: PeerRows, number: int) -> None:
        steps = self.size.peer_steps
        cell = measure("rocksdb", number, rows, lambda: loop.train(steps), steps=steps)
        say(f"rocksdb, round {number}: {cell['rows_per_s']:,.0f}/s")
        self.benchmark.cells.append(cell)


def compare(benchmark: common.Benchmark, batch: int) -> None:
    """Rates over the lower of the two limits, over those without lookahead and over the peer's; energy."""
    summarize(benchmark, batch)

    def figures(variant: str, name: str) -> list[float]:
        return [float(str(c[name])) for c in benchmark.cells if c["variant"] == variant]

    own = figures("quarter", "rows_per_s")
    for variant in ("blind", "rocksdb"):
        found = figures(variant, "rows_per_s")
        if found:
            benchmark.summarize(f"{variant}_rows_per_s", common.Median.of(found))
            over = [rate / other for rate, other in zip(own, found, strict=True)]
            benchmark.summarize(f"rate_over_{variant}", common.Median.of(over))
    for variant in ("quarter", "blind", "rocksdb"):
        if blocks := figures(variant, "blocks_read_per_step"):
            benchmark.summarize(f"{variant}_blocks_read_per_step", common.Median.of(blocks))
    for variant in ("quarter", "blind", "in_memory", "rocksdb"):
        if cpu_us := figures(variant, "cpu_us_per_row"):
            joules = common.Median.of(1e-6 * us * batch * common.WATTS for us in cpu_us)
            benchmark.summarize(f"{variant}_joules_per_batch", joules)
    benchmark.summary["watts_per_core_assumed"] = common.WATTS


def _memory(shape: Shape, row_memory: int) -> int:
    return row_memory + shape.nodes * _INDEX_BYTES + _FIXED_BYTES


def say(line: str) -> None:
    """To the screen, beside the JSON."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("--peer", action="store_true", help="RocksDB too (needs librocksdb-dev)")
    parser.add_argument("--lookahead", type=int, default=LOOKAHEAD, help=f"batches ({LOOKAHEAD})")
    parser.add_argument("--rounds", type=int, help="how many are measured (5, quick: 3)")
    parser.add_argument("--threads", type=int, default=1, help="of the trainer (1)")
    parser.add_argument(
        "--folder", type=Path, default=common.REPOSITORY, help="where stores are made"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    size = size_of(
        quick=benchmark.settings.quick, seed=benchmark.settings.seed, rounds=arguments.rounds
    )
    torch.set_num_threads(arguments.threads)
    program = common.bench_program(["rocksdb"] if arguments.peer else [])

    def probe(store: Path, number: int) -> float:
        return device_reads_per_s(program, store, seconds=1.0, seed=number)

    run = Run(
        benchmark, size, threads=arguments.threads, lookahead=arguments.lookahead, probe=probe
    )
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=arguments.folder) as name:
        graph = size.shape.graph(Path(name))
        # The disk need not hold both.
        with tempfile.TemporaryDirectory(dir=name) as stores:
            run.train(graph, Path(stores))
            # A store that somebody still knows keeps the space of its files.
            gc.collect()
        if arguments.peer:
            peer = {"row_bytes": DIM * 4, "memory": size.memory, "keys_max": size.keys_max}
            say("rocksdb: filling")
            with peer_rows(program, "rocksdb", Path(name), threads=PEER_THREADS, **peer) as rows:
                load(rows, size.shape)
                run.train_peer(graph, rows, Path(name))
    compare(benchmark, size.shape.batch)
    for name in ("rate_with_a_quarter_over_limit", "rate_over_blind", "rate_over_rocksdb"):
        if name in benchmark.summary:
            say(f"{name}: {benchmark.summary[name]:.3f}")
    benchmark.write()


if __name__ == "__main__":
    main()
