"""Generated graphs of the shapes of eBay-Trisk and eBay-Payout with fewer nodes, and settings of training on them.

eBay-Trisk has 185 M nodes, transactions and the entities they share (such as buyers), with 256 weights per row. eBay-Payout
has 1.7 G nodes, sellers, items and checkouts, with 768 weights. Neither is public, so links are random: a node of frequency
rank r is drawn as a target with probability proportional to `r**-0.5`, and node numbers do not depend on ranks. Classes
are random too, because only speed is measured.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rowmill.config import Config, DataConfig, ModelConfig, RowsConfig, StoreConfig, TrainConfig
from rowmill.gnn.settings import GnnConfig

CLASSES = 2
FANOUTS = (4, 5)
HIDDEN = 64
RATE = 0.05
DENSE_RATE = 0.01


@dataclass(frozen=True)
class Shape:
    """The shape of a graph.

    Attributes:
        parts: Number of nodes of each kind; the first kind is classified.
        links: (source kind, target kind, links per source node).
        dim: Weights per row.
        batch: Nodes per batch.
    """

    parts: tuple[int, ...]
    links: tuple[tuple[int, int, int], ...]
    dim: int
    batch: int
    seed: int = 1

    @property
    def nodes(self) -> int:
        """Number of nodes of all kinds."""
        return sum(self.parts)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows: weights and Adagrad state."""
        return self.nodes * self.dim * 2 * 4

    def write(self, path: Path) -> None:
        """Write the graph as a file for `rowmill train --task gnn`."""
        random = np.random.default_rng(self.seed)
        begins = np.concatenate([[0], np.cumsum(self.parts)])
        numbers = random.permutation(self.nodes)
        edges: list[Any] = []
        for source, target, count in self.links:
            ends = np.repeat(np.arange(self.parts[source]), count) + begins[source]
            # If u is uniform, N u**2 has probabilities proportional to r**-0.5.
            ranks = (self.parts[target] * random.random(len(ends)) ** 2).astype(np.int64)
            edges.append(np.stack([numbers[ends], numbers[ranks + begins[target]]], axis=1))
        held_out = self.batch
        masks = np.zeros((3, 1, self.nodes), np.bool_)
        for mask, nodes in zip(
            masks, np.split(np.arange(self.parts[0]), [-2 * held_out, -held_out]), strict=True
        ):
            mask[0, numbers[nodes]] = True
        labels = random.integers(0, CLASSES, self.nodes)
        names = ("train_masks", "val_masks", "test_masks")
        arrays = dict(zip(names, masks, strict=True))
        np.savez(path, edges=np.concatenate(edges), labels=labels, **arrays)

    def config(self, data: Path, out: Path, *, store: StoreConfig, threads: int) -> Config:
        """The settings of a training run."""
        return Config(
            data=DataConfig(path=data),
            model=ModelConfig(kind="graphsage", dim=self.dim),
            gnn=GnnConfig(
                rows="learned",
                fanouts=FANOUTS,
                hidden=HIDDEN,
                isolated="keep",
                choose="last",
                validate_every=0,
            ),
            rows=RowsConfig(lr=RATE),
            store=store,
            train=TrainConfig(
                task="gnn",
                batch=self.batch,
                seed=self.seed,
                dense_lr=DENSE_RATE,
                threads=threads,
                checkpoint_every=0,
                out=out,
            ),
        )


def trisk(nodes: int, batch: int, seed: int) -> Shape:
    """The shape of eBay-Trisk: three transactions per entity, with four links each."""
    return Shape((nodes * 3 // 4, nodes // 4), ((0, 1, 4),), 256, batch, seed)


def payout(nodes: int, batch: int, seed: int) -> Shape:
    """The shape of eBay-Payout: checkouts of two items each, items of one seller each."""
    sellers, items = nodes // 100, nodes // 5
    links = ((0, 1, 2), (1, 2, 1))
    return Shape((nodes - sellers - items, items, sellers), links, 768, batch, seed)
