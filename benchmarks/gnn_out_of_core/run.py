"""What does less memory cost a graph neural network whose features are rows of a store?

GraphSAGE on a generated graph shaped like papers100M (128 features, about 15 edges a node, degrees by a power law), scaled to what a
disk holds: 2^24 nodes, 8.6 GB of features; the quick form 2^17. Memory for a quarter of the features, with lookahead and
without, beside the lower of two limits: the rate with memory for all, and what the device gives over the cold rows of a step. The
neighbours lie in a file that is mapped.
"""

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.out_of_core.generated import LEAD, one_round, summarize
from benchmarks.training import LoadedTrainer, device_reads_per_s
from rowmill.config import Config, GnnConfig, ModelConfig, StoreConfig, TrainConfig
from rowmill.data import Features, NodeGraph, NodeSplit
from rowmill.train.nodes import NodeTask
from rowmill.train.rows import open_rows
from rowmill.train.run import Trainer

SHARE = 0.25
CLASSES = 172
DIM = 128
DEGREE = 15
_CHUNK = 1 << 18
_ODD = 0x9E37_79B1
"""Times an odd number, modulo a power of two, every node gets another rank."""


@dataclass(frozen=True)
class Shape:
    """The work, by its size: 2^`bits` nodes, and batches whose samples take a small part of the memory."""

    bits: int
    batch: int
    seed: int

    @property
    def nodes(self) -> int:
        """Nodes of the graph."""
        return 1 << self.bits

    @property
    def feature_bytes(self) -> int:
        """Bytes of all rows."""
        return self.nodes * DIM * 4


@dataclass(frozen=True)
class DrawnFeatures(Features):
    """Features that are drawn when they are asked for, so that they need not fit into memory once more."""

    seed: int = 0

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """The vectors of a range of nodes."""
        random = np.random.default_rng([self.seed, start])
        return random.standard_normal((stop - start, self.dim), np.float32)


def drawn_graph(shape: Shape, folder: Path) -> NodeGraph:
    """Degrees and neighbours by a power law (density of degrees to the power -3), neighbours in a file."""
    random = np.random.default_rng(shape.seed)
    # Half of the mean at least, so that the mean of a Pareto law of index 2 is what is wanted.
    degrees = np.minimum(DEGREE / 2 / np.sqrt(random.random(shape.nodes)), shape.nodes // 8)
    indptr = np.concatenate([[0], np.cumsum(degrees.astype(np.int64))])
    file = folder / "indices.npy"
    indices = np.lib.format.open_memmap(file, "w+", np.int32, (int(indptr[-1]),))
    for start in range(0, len(indices), _CHUNK):
        stop = min(start + _CHUNK, len(indices))
        ranks = (shape.nodes * random.random(stop - start) ** 2).astype(np.uint64)
        indices[start:stop] = (ranks * _ODD) & np.uint64(shape.nodes - 1)
    indices.flush()
    return NodeGraph(
        path=file,
        indptr=indptr,
        indices=np.load(file, mmap_mode="r"),
        labels=np.arange(shape.nodes) % CLASSES,
        features=DrawnFeatures(DIM, seed=shape.seed),
        masks=None,
    )


def config_of(shape: Shape, folder: Path, name: str, *, share: float | None, ahead: int) -> Config:
    """The settings of a run: memory for a share of the features, or for all where that is None."""
    return Config(
        model=ModelConfig(kind="graphsage"),
        gnn=GnnConfig(fanouts=(10, 5), hidden=128, validate_every=0),
        store=StoreConfig(
            memory=str(shape.feature_bytes + 16 * shape.nodes + (512 << 20)),
            row_memory=None if share is None else str(int(shape.feature_bytes * share)),
            lookahead=ahead,
        ),
        train=TrainConfig(
            task="gnn",
            batch=shape.batch,
            seed=shape.seed,
            checkpoint_every=0,
            out=folder / name,
        ),
    )


@contextmanager
def loaded(config: Config, graph: NodeGraph, *, threads: int) -> Generator[LoadedTrainer]:
    """A trainer whose features are all on the device."""
    config = replace(config, train=replace(config.train, threads=threads))
    some = np.arange(config.train.batch)
    everyone = np.random.default_rng(config.train.seed).permutation(graph.nodes)
    with open_rows(config, threads=threads, identity={}) as store:
        split = NodeSplit(everyone, some, some)
        task = NodeTask(config, graph, split, store, {}, Console(quiet=True))
        store.checkpoint()
        trainer = Trainer(config, task)
        with closing(trainer.steps(0)) as steps:
            yield LoadedTrainer(trainer, steps)


def measure(
    benchmark: common.Benchmark, shape: Shape, *, rounds: int, steps: int, warm_up: int
) -> None:
    """Rounds of the probe and of all variants, interleaved."""
    program = common.bench_program()
    threads = max(len(os.sched_getaffinity(0)) - 1, 1)
    # Beside the repository, not in /tmp: that may be memory.
    place = os.environ.get("ROWMILL_BENCH_DIR", str(common.REPOSITORY))
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=place) as name, ExitStack() as stack:
        folder = Path(name)
        graph = drawn_graph(shape, folder)
        settings = {"quarter": (SHARE, 4), "blind": (SHARE, 0), "in_memory": (None, 0)}
        variants: dict[str, LoadedTrainer] = {}
        for variant, (share, ahead) in settings.items():
            config = config_of(shape, folder, variant, share=share, ahead=ahead)
            variants[variant] = stack.enter_context(loaded(config, graph, threads=threads))
            variants[variant].train(warm_up)
        for number in range(rounds):
            reads = device_reads_per_s(
                program, variants["quarter"].folder, seconds=1.0, seed=number
            )
            one_round(benchmark, variants, number, steps=steps, device=reads)
    summarize(benchmark, shape.batch)
    rates = {
        variant: [
            float(str(cell["rows_per_s"])) for cell in benchmark.cells if cell["variant"] == variant
        ]
        for variant in variants
    }
    gained = zip(rates["quarter"], rates["blind"], strict=True)
    benchmark.summarize(
        "rate_with_lookahead_over_without", common.Median.of(on / off for on, off in gained)
    )
    benchmark.summary["nodes"] = shape.nodes
    benchmark.summary["edges"] = graph.edges
    benchmark.summary["feature_bytes"] = shape.feature_bytes


def main() -> None:
    benchmark = common.Benchmark(common.parse_arguments(__doc__))
    seed = benchmark.settings.seed
    if benchmark.settings.quick:
        shape, rounds, steps, warm_up = Shape(bits=17, batch=64, seed=seed), 5, 40, 80
    else:
        shape, rounds, steps, warm_up = Shape(bits=24, batch=1024, seed=seed), 7, 40, 200
    assert warm_up + rounds * (LEAD + steps) <= shape.nodes // shape.batch
    measure(benchmark, shape, rounds=rounds, steps=steps, warm_up=warm_up)
    for name in ("rate_with_a_quarter_over_limit", "rate_with_lookahead_over_without"):
        print(f"{name}: {benchmark.summary[name]:.3f}", file=sys.stderr)
    benchmark.write()


if __name__ == "__main__":
    main()
