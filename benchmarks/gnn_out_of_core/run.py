"""How much slower is a graph neural network if only a quarter of the features fits into memory?

GraphSAGE on a generated graph of the shape of papers100M, with row memory for a quarter of the features, with and
without lookahead. The rate is compared with the lower of two limits: the rate with all rows in memory, and the rate at
which the device can read the cold rows of a step. `--peers` runs the same loop over other engines with the same memory.
"""

import gc
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.gnn_out_of_core.peer import load, peer_loop
from benchmarks.gnn_out_of_core.shape import DIM, FANOUTS, Shape
from benchmarks.gnn_out_of_core.stored import training
from benchmarks.out_of_core.generated import LEAD, summarize, variant_rounds
from benchmarks.peer_loop import PeerLoop, add_arguments, opened_peers, patience_of
from benchmarks.peer_rows import KINDS, PeerRows
from benchmarks.rounds import Patience, counted, run_rounds
from benchmarks.training import LoadedTrainer, device_reads_per_s
from rowmill.config import StoreConfig
from rowmill.gnn.node_graph import NodeGraph

SHARE = 4
"""Row memory is a fraction of the rows: 1 / this number."""
LOOKAHEAD = 60
"""Default of --lookahead. Announced rows stay in memory, so with more batches fewer rows are read twice."""
_INDEX_BYTES = 16
"""Memory per row beyond its bytes: index and bookkeeping."""
_FIXED_BYTES = 64 << 20


@dataclass(frozen=True)
class Size:
    """Sizes of the measurement. The graph with all rows in memory is smaller; its samples have the same shape."""

    shape: Shape
    in_memory: Shape
    patience: Patience
    steps: int
    warm_up: int
    peer_steps: int
    peer_warm_up: int

    @property
    def row_memory(self) -> int:
        """Bytes of row memory: a quarter of the features."""
        return self.shape.feature_bytes // SHARE

    @property
    def memory(self) -> int:
        """Total memory budget of the store, or of a peer."""
        return _memory(self.shape, self.row_memory)

    @property
    def keys_max(self) -> int:
        """The most nodes per batch: every node of every layer is distinct."""
        nodes = self.shape.batch
        most = nodes
        for fanout in FANOUTS:
            nodes *= fanout
            most += nodes
        return most


def size_of(patience: Patience, *, quick: bool, seed: int) -> Size:
    """2^24 nodes, 8.6 GB of features; the quick form has a sixteenth of that."""
    shape = Shape(bits=20 if quick else 24, batch=256 if quick else 1024, seed=seed)
    return Size(
        shape=shape,
        in_memory=replace(shape, bits=shape.bits - 2),
        patience=patience,
        steps=20,
        warm_up=40,
        peer_steps=5 if quick else 10,
        peer_warm_up=40,
    )


class Run:
    """A running benchmark."""

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

    def train(self, graph: NodeGraph, folder: Path, peers: Mapping[str, PeerRows]) -> None:
        """Run rounds: a probe of the device, a quarter with and without lookahead, all in memory, and peers."""
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
            # Write dirty rows now, so that they are not written during the measurement.
            variants["quarter"].store.checkpoint()
            variants["blind"] = variants["quarter"].unannounced()
            variants["in_memory"] = made("in_memory", few, few.graph(folder), all_rows)
            loops: dict[str, PeerLoop] = {}
            for kind, rows in peers.items():
                say(f"{kind}: filling")
                load(rows, size.shape)
                opened = peer_loop(
                    rows,
                    size.shape,
                    graph,
                    folder / f"{kind}-model",
                    lookahead=self.lookahead,
                    threads=self.threads,
                )
                loops[kind] = stack.enter_context(opened)
            say("warming up")
            variants["quarter"].train(size.warm_up)
            variants["in_memory"].train(LEAD)
            for loop in loops.values():
                loop.train(size.peer_warm_up)
            say("measuring")
            # Unmeasured steps use up prefetches from before other variants ran, so that announcements run as in training.
            lead = max(LEAD, 2 * self.lookahead)
            rounds = variant_rounds(
                variants,
                loops,
                self._probe,
                steps=size.steps,
                peer_steps=size.peer_steps,
                leads={"quarter": lead, "blind": lead},
            )
            run_rounds(self.benchmark, rounds, size.patience)
            self._note_store(variants["quarter"])

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


def compare(benchmark: common.Benchmark, batch: int) -> None:
    """Add rates relative to the lower limit, to the rate without lookahead and to peers; and energy."""
    summarize(benchmark, batch)

    def figures(variant: str, name: str) -> list[float]:
        return [float(cell[name]) for cell in counted(benchmark, variant)]

    own, blind = figures("quarter", "rows_per_s"), figures("blind", "rows_per_s")
    benchmark.summarize("blind_rows_per_s", common.Median.of(blind))
    over = [rate / other for rate, other in zip(own, blind, strict=True)]
    benchmark.summarize("rate_over_blind", common.Median.of(over))
    for variant in ("quarter", "blind"):
        if blocks := figures(variant, "blocks_read_per_step"):
            benchmark.summarize(f"{variant}_blocks_read_per_step", common.Median.of(blocks))
    for variant in ("quarter", "blind", "in_memory", *KINDS):
        if cpu_us := figures(variant, "cpu_us_per_row"):
            joules = common.Median.of(1e-6 * us * batch * common.WATTS for us in cpu_us)
            benchmark.summarize(f"{variant}_joules_per_batch", joules)
    benchmark.summary["watts_per_core_assumed"] = common.WATTS


def _memory(shape: Shape, row_memory: int) -> int:
    return row_memory + shape.nodes * _INDEX_BYTES + _FIXED_BYTES


def say(line: str) -> None:
    """Print to the terminal (stderr), because stdout may hold the JSON."""
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = common.argument_parser(__doc__)
    add_arguments(parser)
    parser.add_argument(
        "--lookahead",
        type=int,
        default=LOOKAHEAD,
        help=f"number of batches to prefetch (default {LOOKAHEAD})",
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

    run = Run(
        benchmark, size, threads=arguments.threads, lookahead=arguments.lookahead, probe=probe
    )
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=arguments.folder) as name:
        folder = Path(name)
        graph = size.shape.graph(folder)
        options = {
            "rows": size.shape.nodes,
            "row_bytes": DIM * 4,
            "memory": size.memory,
            "changes": False,
            "keys_max": size.keys_max,
        }
        with opened_peers(program, arguments.peers, folder, **options) as peers:
            run.train(graph, folder, peers)
            # A variable that still refers to a store keeps the disk space of its files.
            gc.collect()
    compare(benchmark, size.shape.batch)
    for name, value in benchmark.summary.items():
        if name.startswith("rate_") and not name.endswith("_spread"):
            say(f"{name}: {value:.3f}")
    benchmark.write()


if __name__ == "__main__":
    main()
