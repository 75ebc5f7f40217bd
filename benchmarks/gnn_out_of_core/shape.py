"""A generated graph of the shape of papers100M with fewer nodes, and the settings of training on it.

papers100M, a common benchmark, has 111,059,956 nodes with 128 features and 1,615,685,872 edges, 14.5 per node. The
generated graph has the same number of features and edges per node. Degrees have the density `d**-3`; a neighbour of
frequency rank r is drawn with probability proportional to `r**-0.5`, which matches this density. Node numbers do not
depend on ranks, so frequent rows are not neighbours on the device.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rowmill.config import Config, ModelConfig, StoreConfig, TrainConfig
from rowmill.gnn.node_graph import NodeGraph
from rowmill.gnn.settings import GnnConfig

CLASSES = 172
DIM = 128
DEGREE = 15
FANOUTS = (10, 5)
_CHUNK = 1 << 18
_ODD = 0x9E37_79B1
"""An odd factor; multiplying by it modulo a power of two maps every rank to a different node."""


@dataclass(frozen=True)
class Shape:
    """The sizes: 2^`bits` nodes, and nodes per batch."""

    bits: int
    batch: int
    seed: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph."""
        return 1 << self.bits

    @property
    def feature_bytes(self) -> int:
        """Bytes of all rows."""
        return self.nodes * DIM * 4

    def at_ranks(self, ranks: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The nodes with these frequency ranks; rank 0 is the most frequent."""
        return ((ranks * np.uint64(_ODD)) & np.uint64(self.nodes - 1)).astype(np.int64)

    def graph(self, folder: Path) -> NodeGraph:
        """The graph without its features; its neighbour lists are a memory-mapped file."""
        random = np.random.default_rng([self.seed, 0])
        # The minimum is half the mean, because a Pareto distribution of index 2 has a mean of twice its minimum.
        degrees = np.minimum(DEGREE / 2 / np.sqrt(random.random(self.nodes)), self.nodes // 8)
        indptr = np.concatenate([[0], np.cumsum(degrees.astype(np.int64))])
        file = folder / f"neighbours-{self.bits}.npy"
        indices = np.lib.format.open_memmap(file, "w+", np.int32, (int(indptr[-1]),))
        for start in range(0, len(indices), _CHUNK):
            stop = min(start + _CHUNK, len(indices))
            # If u is uniform, N u**2 has probabilities proportional to r**-0.5.
            ranks = (self.nodes * random.random(stop - start) ** 2).astype(np.uint64)
            indices[start:stop] = self.at_ranks(ranks)
        indices.flush()
        return NodeGraph(
            path=file,
            indptr=indptr,
            indices=np.load(file, mmap_mode="r"),
            labels=np.arange(self.nodes) % CLASSES,
            features=None,
            masks=None,
        )

    def features(self, number: int, count: int) -> NDArray[np.float32]:
        """Random features of `count` nodes, float32; `number` is the seed."""
        random = np.random.default_rng([self.seed, 1, number])
        return random.standard_normal((count, DIM), np.float32)

    def train_nodes(self) -> NDArray[np.int64]:
        """All nodes in random order."""
        return np.random.default_rng([self.seed, 2]).permutation(self.nodes)

    def config(self, out: Path, *, store: StoreConfig, threads: int | None) -> Config:
        """The settings of a training run."""
        return Config(
            model=ModelConfig(kind="graphsage"),
            gnn=GnnConfig(fanouts=FANOUTS, hidden=128, validate_every=0),
            store=store,
            train=TrainConfig(
                task="gnn",
                batch=self.batch,
                seed=self.seed,
                threads=threads,
                checkpoint_every=0,
                out=out,
            ),
        )
