"""A graph of the shape of Freebase with fewer entities, and the settings of training on it.

Freebase86m, on which others measure, has 86,054,151 entities, 14,824 relations and 338,586,276 triples, 3.93 per
entity. The generated graph keeps relations and triples per entity and has fewer entities. The entity of rank r among
the frequent ones is an end of a triple with a chance proportional to r**-SKEW. Numbers say nothing about ranks:
systems that train by partitions number entities at random, so that partitions are of a kind.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rowmill.config import Config, DataConfig, ModelConfig, RowsConfig, StoreConfig, TrainConfig
from rowmill.kge.graph import Graph
from rowmill.kge.settings import KgeConfig

TRIPLES_PER_ENTITY = 338_586_276 / 86_054_151
SKEW = 0.7
"""Of ranks; it belongs to degrees whose density falls with the power 1 + 1 / 0.7 = 2.4."""
RANKED = 1000
"""Triples of the parts for validation and test."""
_DRAWN = 1 << 22


def _nameless(count: int) -> Any:
    return pa.nulls(count)  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True)
class Shape:
    """Sizes of the graph and of a batch."""

    entities: int
    relations: int = 14_824
    dim: int = 100
    batch: int = 1024
    negatives: int = 256
    partitions: int = 32
    buffer: int = 7
    seed: int = 1

    @property
    def triples(self) -> int:
        """Of the train part."""
        return int(self.entities * TRIPLES_PER_ENTITY)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows: weights and the state of Adagrad. Relations have a row for each direction."""
        return (self.entities + 2 * self.relations) * self.dim * 2 * 4

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The number of the entity of each rank."""
        return np.random.default_rng([self.seed, 0]).permutation(self.entities)

    def draw(self, count: int, purpose: int) -> NDArray[np.int64]:
        """Triples `[count, 3]`."""
        random = np.random.default_rng([self.seed, purpose])
        drawn = np.empty((count, 3), np.int64)
        for start in range(0, count, _DRAWN):
            part = drawn[start : start + _DRAWN]
            for column in (0, 2):
                # Chances of r**-s are those of N u**(1 / (1 - s)), u being even.
                ranks = self.entities * random.random(len(part)) ** (1 / (1 - SKEW))
                part[:, column] = self.numbers[ranks.astype(np.int64)]
            part[:, 1] = (self.relations + 1) ** random.random(len(part))
            part[:, 1] -= 1
        return drawn

    def graph(self) -> Graph:
        """The graph; its names take no memory."""
        return Graph(
            entities=_nameless(self.entities),
            relations=_nameless(self.relations),
            train=self.draw(self.triples, 1),
            valid=self.draw(RANKED, 2),
            test=self.draw(RANKED, 3),
        )

    def config(
        self, out: Path, *, partitioned: bool, store: StoreConfig, threads: int | None
    ) -> Config:
        """The settings of a run."""
        return Config(
            data=DataConfig(),
            model=ModelConfig(kind="complex", dim=self.dim),
            kge=KgeConfig(
                negatives=self.negatives,
                partitions=self.partitions if partitioned else 1,
                buffer_partitions=self.buffer,
            ),
            rows=RowsConfig(lr=0.1, initial_width=0.1),
            store=store,
            train=TrainConfig(
                task="kge",
                batch=self.batch,
                seed=self.seed,
                threads=threads,
                checkpoint_every=0,
                out=out,
            ),
        )
