"""A generated graph of the shape of Freebase with fewer entities, and the settings of training on it.

Freebase86m, a common benchmark, has 86,054,151 entities, 14,824 relations and 338,586,276 triples, 3.93 per entity. The
generated graph has the same number of relations and triples per entity. The entity of frequency rank r is drawn with
probability proportional to r**-SKEW. Entity numbers do not depend on ranks: systems that train by partitions number
entities at random, so that partitions are alike.
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
"""Exponent of ranks; degrees then follow a power law with exponent 1 + 1 / 0.7 = 2.4."""
RANKED = 1000
"""Number of triples for validation and for test."""
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
        """Number of training triples."""
        return int(self.entities * TRIPLES_PER_ENTITY)

    @property
    def row_bytes(self) -> int:
        """Bytes of all rows: weights and Adagrad state. A relation has a row for each direction."""
        return (self.entities + 2 * self.relations) * self.dim * 2 * 4

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The entity number of each frequency rank."""
        return np.random.default_rng([self.seed, 0]).permutation(self.entities)

    def draw(self, count: int, purpose: int) -> NDArray[np.int64]:
        """Draw triples, int64 `[count, 3]`; `purpose` is part of the seed."""
        random = np.random.default_rng([self.seed, purpose])
        drawn = np.empty((count, 3), np.int64)
        for start in range(0, count, _DRAWN):
            part = drawn[start : start + _DRAWN]
            for column in (0, 2):
                # If u is uniform, N u**(1 / (1 - s)) has probabilities proportional to r**-s.
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
        """The settings of a training run."""
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
