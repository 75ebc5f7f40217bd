"""The embedding tables of RM1 (RecSSD, ASPLOS 2021, table 1), and requests on them."""

from dataclasses import dataclass

import numpy as np

TABLES, DIM, LOOKUPS = 8, 32, 80
BLOCK_BYTES = 4096
ROW_BYTES = 4 * DIM


@dataclass(frozen=True)
class Lookup:
    """Ids of one request: `LOOKUPS` per bag, uniform, feature after feature.

    Attributes:
        ids: int64, `TABLES * bags * LOOKUPS` of them.
        offsets: int64, where each bag starts, and the end of the last.
        bags: Samples of the request.
    """

    ids: np.ndarray
    offsets: np.ndarray
    bags: int

    @property
    def rows(self) -> int:
        """Rows looked up."""
        return len(self.ids)

    def of_table(self, number: int) -> np.ndarray:
        """The ids of one table."""
        return self.ids.reshape(TABLES, -1)[number]


def names() -> list[str]:
    """Names of the tables."""
    return [f"t{number}" for number in range(TABLES)]


def draw(rng: np.random.Generator, *, rows: int, bags: int, first: int = 0) -> Lookup:
    """A request on tables of `rows` rows each, whose ids start at `first`."""
    count = TABLES * bags * LOOKUPS
    ids = rng.integers(first, first + rows, count, dtype=np.int64)
    return Lookup(ids, np.arange(0, count + 1, LOOKUPS, dtype=np.int64), bags)


def distinct_rows(lookup: Lookup) -> list[np.ndarray]:
    """The distinct ids of each table."""
    return [np.unique(lookup.of_table(number)) for number in range(TABLES)]


def distinct_blocks(lookup: Lookup, *, rows: int, first: int = 0) -> np.ndarray:
    """The distinct blocks that a host would read, if the rows of all tables lay side by side, table after table."""
    per_block = BLOCK_BYTES // ROW_BYTES
    blocks = -(-rows // per_block)
    return np.concatenate(
        [
            number * blocks + np.unique((lookup.of_table(number) - first) // per_block)
            for number in range(TABLES)
        ]
    )
