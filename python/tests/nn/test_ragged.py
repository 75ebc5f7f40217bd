"""Ragged batches: all constructors give the same bags."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rowmill import RaggedBatch
from rowmill.errors import InvalidInput

bags = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.lists(
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4), min_size=size, max_size=size
        ),
        min_size=1,
        max_size=4,
    )
)


@given(bags)
def test_all_constructors_give_the_same_bags(features: list[list[list[int]]]) -> None:
    batch = RaggedBatch.from_lists({f"f{i}": lists for i, lists in enumerate(features)})
    assert batch.batch_size == len(features[0])
    for name, lists in zip(batch.features, features, strict=True):
        ids, offsets = batch.bags(name)
        ends = offsets.tolist()
        assert [ids[a:b].tolist() for a, b in itertools.pairwise(ends)] == lists


def test_dense_ids_are_bags_of_one() -> None:
    batch = RaggedBatch.from_dense(("a", "b"), torch.tensor([[1, 4], [2, 5], [3, 6]]))
    assert batch.values.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.bags("b")[0].tolist() == [4, 5, 6]
    with pytest.raises(InvalidInput, match=r"ids must be \[B, 2\], got \[3\]"):
        RaggedBatch.from_dense(("a", "b"), torch.tensor([1, 2, 3]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"features": ()}, "features must be distinct names"),
        ({"features": ("a", "a")}, "features must be distinct names"),
        ({"values": torch.zeros(4)}, "values must be 1-D of torch.int64, got 1-D of torch.float32"),
        ({"offsets": torch.tensor([0, 1, 4, 4])}, "F = 2 features, got 4"),
        ({"weights": torch.zeros(3)}, r"one entry per id \(4\), got 3"),
    ],
)
def test_invalid_batches_are_named(change: dict[str, object], says: str) -> None:
    parts = {
        "features": ("a", "b"),
        "values": torch.arange(4),
        "offsets": torch.tensor([0, 1, 4]),
        **change,
    }
    with pytest.raises(InvalidInput, match=says):
        RaggedBatch(**parts)  # pyright: ignore[reportArgumentType]
