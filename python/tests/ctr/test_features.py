"""Ids and counts as model inputs: missing and unseen values have their own ids, and batches keep their order.

What could break: a vocabulary that includes test rows, a missing value that shares a row with a real one, a resumed run whose
batches differ from those of an uninterrupted run.
"""

import numpy as np
import pyarrow as pa
import pytest
import torch

from rowmill.ctr.data import (
    MISSING_ID,
    FullIds,
    HashedIds,
    Schema,
    batches,
    fit_vocabulary,
    id_way,
    open_source,
)
from rowmill.ctr.data.features import MISSING_VOCABULARY_ID, OOV_ID, log_counts, mix64, transform
from rowmill.ctr.data.row_block import RowBlock
from rowmill.ctr.data.source import Source

SCHEMA = Schema(label="y", dense=("x",), ids=("user", "item"))


def source(users: list[int | None], items: list[int | None] | None = None) -> Source:
    rows = len(users)
    items = users if items is None else items
    return open_source(
        pa.table({"y": [0] * rows, "x": list(range(rows)), "user": users, "item": items}), SCHEMA
    )


def test_counts_become_logs_and_missing_or_negative_ones_zero() -> None:
    dense = np.array([[0, 1, 99, -3, np.nan]], dtype=np.float32)
    np.testing.assert_allclose(log_counts(dense), [[0, np.log(2), np.log(100), 0, 0]], rtol=1e-6)


def test_logarithms_of_counts_are_rounded_to_the_nearest_float() -> None:
    counts = np.arange(0, 2**24, 331, dtype=np.float32)
    exact = np.log1p(counts.astype(np.longdouble)).astype(np.float32)
    np.testing.assert_array_equal(log_counts(counts), exact)
    assert not np.signbit(log_counts(np.full(33, -0.0, np.float32))).any()


def test_ids_full_uses_the_values_as_ids() -> None:
    ids = np.array([[2**62, -1], [MISSING_ID, 0]], dtype=np.int64)
    np.testing.assert_array_equal(FullIds().apply(ids), ids)
    assert FullIds().rows(2) is None


def test_hashed_ids_are_uniform_differ_by_feature_and_keep_missing_separate() -> None:
    values = np.arange(20_000, dtype=np.int64)
    ids = np.stack([values, values], axis=1)
    ids[0] = MISSING_ID
    hashed = HashedIds(100).apply(ids)
    assert hashed[0].tolist() == [100, 100]
    assert hashed[1:].min() == 0
    assert hashed[1:].max() == 99
    counts = np.bincount(hashed[1:, 0], minlength=100)
    # 200 expected per bucket; 5 standard deviations of a binomial.
    assert abs(counts - 200).max() < 5 * np.sqrt(200)
    assert (hashed[1:, 0] == hashed[1:, 1]).mean() < 0.02
    assert HashedIds(100).rows(2) == [101, 101]


def test_mix64_is_a_bijection_on_a_sample() -> None:
    words = np.arange(100_000, dtype=np.uint64) << np.uint64(40)
    assert len(np.unique(mix64(words))) == len(words)


def test_a_vocabulary_holds_frequent_values_of_the_training_rows() -> None:
    log = source([5, 5, 9, 5, None, 9, 7, 7, 7], [1, 1, 1, 1, 1, 1, 2, 2, 2])
    vocabulary = fit_vocabulary(log, rows=6, min_count=2)
    assert [values.tolist() for values in vocabulary.values] == [[5, 9], [1]]
    ids = np.array([[5, 1], [9, 2], [7, MISSING_ID], [MISSING_ID, 1]], dtype=np.int64)
    expected = [[2, 2], [3, OOV_ID], [OOV_ID, MISSING_VOCABULARY_ID], [MISSING_VOCABULARY_ID, 2]]
    assert vocabulary.apply(ids).tolist() == expected
    assert vocabulary.rows(2) == [4, 3]


def test_a_vocabulary_counts_across_blocks() -> None:
    blocks = [
        RowBlock(np.zeros(2, np.float32), np.zeros((2, 1), np.float32), np.array([[a, 1], [b, 2]]))
        for a, b in [(1, 2), (2, 3), (3, 3)]
    ]

    class Three:
        schema = SCHEMA
        rows = 6

        def blocks(self, start: int, stop: int):
            return iter(blocks)

    values = fit_vocabulary(Three(), rows=6, min_count=2).values
    assert [known.tolist() for known in values] == [[2, 3], [1, 2]]


def test_a_vocabulary_may_be_empty() -> None:
    vocabulary = fit_vocabulary(source([1, 2, 3]), rows=3, min_count=2)
    assert vocabulary.apply(np.array([[1, 2]])).tolist() == [[OOV_ID, OOV_ID]]


def test_fingerprints_of_vocabularies_differ() -> None:
    one = fit_vocabulary(source([5, 5, 9, 9]), rows=4, min_count=2)
    same = fit_vocabulary(source([9, 9, 5, 5]), rows=4, min_count=2)
    other = fit_vocabulary(source([5, 5, 8, 8]), rows=4, min_count=2)
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    assert FullIds().fingerprint() is HashedIds(3).fingerprint() is None


def test_an_unknown_id_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="must be full, hash or vocabulary"):
        id_way("magic", source([1]), train_rows=1, buckets=1, min_count=1)


@pytest.mark.parametrize("way", ["full", "hash", "vocabulary"])
def test_id_mappings_are_found_by_name(way: str) -> None:
    chosen = id_way(way, source([1, 1, 2]), train_rows=2, buckets=10, min_count=2)
    assert chosen.apply(np.array([[1, 1]])).shape == (1, 2)


def test_batches_are_contiguous_tensors_of_documented_dtypes() -> None:
    batch = next(batches(source([1, None, 3]), FullIds(), start=0, stop=3, batch=2))
    assert (batch.dense.dtype, batch.ids.dtype, batch.labels.dtype) == (
        torch.float32,
        torch.int64,
        torch.float32,
    )
    assert (batch.dense.shape, batch.ids.shape, batch.labels.shape) == ((2, 1), (2, 2), (2,))
    assert batch.dense.is_contiguous()
    assert batch.ids.is_contiguous()
    assert batch.ids[1].tolist() == [MISSING_ID, MISSING_ID]


@pytest.mark.parametrize("size", [1, 3, 7, 64, 100])
def test_a_resumed_run_has_the_same_batches(size: int) -> None:
    # Block sizes that are not multiples of the batch, so that batches span blocks.
    users = list(range(64))
    chunked = pa.concat_tables(
        pa.table({"y": [0] * n, "x": [0] * n, "user": users[a : a + n], "item": users[a : a + n]})
        for a, n in [(0, 5), (5, 1), (6, 30), (36, 28)]
    )
    log = open_source(chunked, SCHEMA)
    whole = list(batches(log, FullIds(), start=2, stop=64, batch=size))
    assert [row for batch in whole for row in batch.ids[:, 0].tolist()] == users[2:]
    assert all(len(batch) == size for batch in whole[:-1])
    assert whole[-1].stop == 64
    for number, batch in enumerate(whole):
        rest = list(batches(log, FullIds(), start=batch.stop, stop=64, batch=size))
        expected = [later.ids.tolist() for later in whole[number + 1 :]]
        assert [later.ids.tolist() for later in rest] == expected


def test_transform_keeps_labels_and_maps_ids_and_counts() -> None:
    raw = RowBlock(np.ones(1, np.float32), np.array([[np.e - 1]], np.float32), np.array([[4]]))
    block = transform(raw, FullIds())
    assert block.labels.tolist() == [1.0]
    np.testing.assert_allclose(block.dense, [[1.0]], rtol=1e-6)


def test_a_grown_vocabulary_keeps_its_ids_and_appends_new_ones() -> None:
    first = fit_vocabulary(source([7, 7, 3, 3, 9]), rows=5, min_count=2)
    grown = first.grown(source([1, 1, 9, 9, 7, 5]), rows=6, min_count=2)
    asked = np.array([[3, 0], [7, 0], [1, 0], [9, 0], [5, 0], [MISSING_ID, 0]])
    assert grown.apply(asked)[:, 0].tolist() == [2, 3, 4, 5, OOV_ID, MISSING_VOCABULARY_ID]
    assert first.apply(asked)[:4, 0].tolist() == [2, 3, OOV_ID, OOV_ID]
    rows, grown_rows = first.rows(2), grown.rows(2)
    assert rows is not None
    assert grown_rows is not None
    assert (rows[0], grown_rows[0]) == (4, 6)
    # The same data adds nothing.
    again = grown.grown(source([1, 1, 9, 9, 7, 5]), rows=6, min_count=2)
    assert again.fingerprint() == grown.fingerprint() != first.fingerprint()
