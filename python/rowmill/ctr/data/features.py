"""Model inputs from raw values: log(1 + x) of numeric features, and ids by one of three mappings.

| mapping | id of a value | rows of a table |
|---|---|---|
| full | the 64-bit value itself | unbounded |
| hash | hash of the value and the feature, modulo ``buckets`` | ``buckets`` + 1 |
| vocabulary | position among the values seen ``min_count`` times in the training rows | number of these values + 2 |

Every mapping has one id for missing values. A vocabulary has one more id for all values outside it. Ids of a history
are mapped as ids of the feature that they belong to; its padding counts as missing. Negative and missing numeric values
become 0.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rowmill.ctr.data.row_block import MISSING_ID, RowBlock
from rowmill.ctr.data.schema import Schema
from rowmill.ctr.data.source import Source
from rowmill.errors import DataError

OOV_ID = 0
"""With a vocabulary: the id of every value outside it."""

MISSING_VOCABULARY_ID = 1
"""With a vocabulary: the id of a missing value."""

_KNOWN_FROM = 2


class IdWay(Protocol):
    """A mapping from raw ids ``[n, S]`` to row ids ``[n, S]``."""

    @property
    def missing(self) -> int:
        """The id of a missing value."""
        ...

    def apply(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row ids of raw ids."""
        ...

    def rows(self, features: int) -> list[int] | None:
        """Number of ids per feature, which are in [0, rows); None if ids are any 64-bit values."""
        ...

    def fingerprint(self) -> str | None:
        """A checksum of the values fitted to the data; None if nothing is fitted."""
        ...


class FullIds:
    """The 64-bit value itself."""

    missing = MISSING_ID

    def apply(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row ids of raw ids."""
        return ids

    def rows(self, features: int) -> list[int] | None:
        """Unbounded."""
        return None

    def fingerprint(self) -> str | None:
        """Nothing is fitted."""
        return None


@dataclass(frozen=True)
class HashedIds:
    """A hash modulo ``buckets``; missing values have the id ``buckets``.

    ``features`` holds the feature number of each id column, so that equal values of two features have different ids; None:
    its position.
    """

    buckets: int
    features: tuple[int, ...] | None = None

    @property
    def missing(self) -> int:
        """The id after the last bucket."""
        return self.buckets

    def apply(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row ids of raw ids."""
        features = range(ids.shape[1]) if self.features is None else self.features
        feature = np.array(features, dtype=np.uint64) + np.uint64(1)
        hashed = mix64(ids.view(np.uint64) ^ mix64(feature)) % np.uint64(self.buckets)
        return np.where(ids == MISSING_ID, np.int64(self.buckets), hashed.view(np.int64))

    def rows(self, features: int) -> list[int] | None:
        """All buckets and the id of missing values."""
        return [self.buckets + 1] * features

    def fingerprint(self) -> str | None:
        """Nothing is fitted."""
        return None


@dataclass(frozen=True)
class Vocabulary:
    """The values of each feature that occur often enough, in the order of their ids.

    ``features`` holds the position in ``values`` of the feature of each id column; None: that of the column.

    Values that are known from the start are sorted. Those of later data follow them.
    """

    values: tuple[NDArray[np.int64], ...]
    features: tuple[int, ...] | None = None
    missing = MISSING_VOCABULARY_ID

    @cached_property
    def _sorted(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Per feature, the values sorted, and their ids."""
        orders = [np.argsort(known, kind="stable") for known in self.values]
        return [
            (known[order], order + _KNOWN_FROM)
            for known, order in zip(self.values, orders, strict=True)
        ]

    def grown(self, source: Source, *, rows: int, min_count: int) -> "Vocabulary":
        """This vocabulary with the values at its end that occur often enough in the first ``rows`` rows and have no id."""
        counted = _counted(source, rows)
        new = [
            values[(counts >= min_count) & (values != MISSING_ID) & ~np.isin(values, known)]
            for known, (values, counts) in zip(self.values, counted, strict=True)
        ]
        joined = zip(self.values, new, strict=True)
        return Vocabulary(tuple(map(np.concatenate, joined)), self.features)

    def apply(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row ids of raw ids."""
        out = np.empty_like(ids)
        features = range(ids.shape[1]) if self.features is None else self.features
        for column, feature in enumerate(features):
            raw, (known, known_ids) = ids[:, column], self._sorted[feature]
            if len(known):
                place = np.minimum(np.searchsorted(known, raw), len(known) - 1)
                out[:, column] = np.where(known[place] == raw, known_ids[place], OOV_ID)
            else:
                out[:, column] = OOV_ID
        out[ids == MISSING_ID] = MISSING_VOCABULARY_ID
        return out

    def rows(self, features: int) -> list[int] | None:
        """Known values, plus the id of missing values and the id of all others."""
        return [len(known) + _KNOWN_FROM for known in self.values]

    def fingerprint(self) -> str | None:
        """A checksum of all values."""
        check = 0
        for known in self.values:
            check = crc32(known.tobytes(), crc32(len(known).to_bytes(8, "little"), check))
        return f"{check:08x}"


def fit_vocabulary(source: Source, *, rows: int, min_count: int) -> Vocabulary:
    """Build a vocabulary from the values of the first ``rows`` rows, without histories.

    Ids in a history occur as single ids of earlier rows, so they are counted there. Memory grows with the number of
    distinct values, not of rows.
    """
    nothing = tuple(np.empty(0, np.int64) for _ in source.schema.ids)
    features = tuple(source.schema.id_features)
    return Vocabulary(nothing, features).grown(source, rows=rows, min_count=min_count)


def _counted(source: Source, rows: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Per feature, the sorted distinct values of the first rows, and their numbers of occurrences."""
    features = len(source.schema.ids)
    counted = [(np.empty(0, np.int64), np.empty(0, np.int64)) for _ in range(features)]
    for block in source.blocks(0, rows):
        for feature in range(features):
            fresh, fresh_counts = np.unique(block.ids[:, feature], return_counts=True)
            values, counts = counted[feature]
            merged, place = np.unique(np.concatenate([values, fresh]), return_inverse=True)
            total = np.bincount(
                place, weights=np.concatenate([counts, fresh_counts]), minlength=len(merged)
            )
            counted[feature] = (merged, total.astype(np.int64))
    return counted


def id_way(name: str, source: Source, *, train_rows: int, buckets: int, min_count: int) -> IdWay:
    """The mapping called ``name``; a vocabulary is fitted on the training rows only."""
    if name == "full":
        return FullIds()
    if name == "hash":
        return HashedIds(buckets, hash_features(source.schema))
    if name == "vocabulary":
        return fit_vocabulary(source, rows=train_rows, min_count=min_count)
    raise DataError(f"ids must be full, hash or vocabulary, got {name!r}")


def hash_features(schema: Schema) -> tuple[int, ...]:
    """The feature number of every id column of a batch, as `HashedIds` takes it."""
    return tuple(schema.feature_numbers[feature] for feature in schema.id_features)


def log_counts(dense: NDArray[np.float32]) -> NDArray[np.float32]:
    """log(1 + x) computed in 64 bits and rounded once, 0 where x is negative or missing.

    The 32-bit logarithms of numpy and of C libraries differ in their last bits. The rounded 64-bit ones are equal, so that a
    server, and a trainer on another machine, compute the same inputs.
    """
    # Adding 0 makes a negative zero positive.
    counts = np.fmax(dense, np.float32(0)) + np.float32(0)
    return np.log1p(counts, dtype=np.float64).astype(np.float32)


def transform(block: RowBlock, way: IdWay) -> RowBlock:
    """Model inputs of raw rows."""
    ids = np.ascontiguousarray(way.apply(block.ids))
    return RowBlock(block.labels, log_counts(block.dense), ids, block.lengths)


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words whose output bits all depend on all input bits (Stafford's variant 13)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
