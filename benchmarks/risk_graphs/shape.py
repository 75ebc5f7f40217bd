"""Graphs of the shapes of eBay-Trisk and eBay-Payout with fewer nodes, and the settings of training on them.

eBay-Trisk has 185 M nodes, transactions and entities they share (buyers and so on), with embeddings of 256 weights;
eBay-Payout 1.7 G nodes, sellers, items and checkouts, with 768. Neither is public, so links are drawn: a node of the second kind
has rank r among those that are linked to often with a chance proportional to `r**-0.5`, and numbers say nothing about
ranks. Classes are drawn too: what is measured is speed.
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
    """A graph.

    Attributes:
        parts: Nodes of each kind, the first of which are classified.
        links: (kind, kind, how many each node of the first has).
        dim: Weights of a row.
        batch: Nodes of a batch.
    """

    parts: tuple[int, ...]
    links: tuple[tuple[int, int, int], ...]
    dim: int
    batch: int
    seed: int = 1

    @property
    def nodes(self) -> int:
        """Nodes of all kinds."""
        return sum(self.parts)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows: weights and the state of Adagrad."""
        return self.nodes * self.dim * 2 * 4

    def write(self, path: Path) -> None:
        """The graph as a file that `rowmill train --task gnn` reads."""
        random = np.random.default_rng(self.seed)
        begins = np.concatenate([[0], np.cumsum(self.parts)])
        numbers = random.permutation(self.nodes)
        edges: list[Any] = []
        for source, target, count in self.links:
            ends = np.repeat(np.arange(self.parts[source]), count) + begins[source]
            # Chances of r**-0.5 are those of N u**2, u being even.
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
        """The settings of a run."""
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
    """Three transactions for each entity, four links each."""
    return Shape((nodes * 3 // 4, nodes // 4), ((0, 1, 4),), 256, batch, seed)


def payout(nodes: int, batch: int, seed: int) -> Shape:
    """Checkouts of two items each, items of one seller each."""
    sellers, items = nodes // 100, nodes // 5
    links = ((0, 1, 2), (1, 2, 1))
    return Shape((nodes - sellers - items, items, sellers), links, 768, batch, seed)
