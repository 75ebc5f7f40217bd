"""Tables of split-bf16 weights: bytes and updates as with float32, lookups in bfloat16.

Tests in Rust check that kernels, crashes and copies keep every bit; tests in train/ cover training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rowmill
from rowmill.errors import InvalidInput
from rowmill.init import Uniform
from rowmill.nn import EmbeddingCollection, Feature
from rowmill.optim import SGD, Adagrad, OptimizerSpec, RowwiseAdagrad

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ("fp32", "split-bf16")


def cut(weights: Tensor) -> Tensor:
    """The upper halves of weights, which are bfloat16."""
    return (weights.view(torch.int32) & -65536).view(torch.float32)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), RowwiseAdagrad(lr=0.1), Adagrad(lr=0.1)])
def test_updates_with_bf16_gradients_are_bit_identical_to_fp32(
    store: rowmill.Store, optimizer: OptimizerSpec
) -> None:
    tables = [store.table(dtype, dim=7, optimizer=optimizer, dtype=dtype) for dtype in DTYPES]
    assert [table.dtype for table in tables] == list(DTYPES)
    rows = store.stats()["tables"]
    assert rows["fp32"]["row_bytes"] == rows["split-bf16"]["row_bytes"], (
        "rows must take the same memory"
    )
    ids = torch.arange(50)
    tables[1].put(ids, tables[0].get(ids))  # Tables have different initial weights.
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        gradients = torch.randn(50, 7, generator=generator).bfloat16().float() / 128
        for table in tables:
            table.rmw(ids, gradients)
    exact, split = (table.get(ids) for table in tables)
    assert torch.equal(exact, split)
    assert not torch.equal(cut(split), split), "the lower halves must be used"
    assert np.array_equal(*(table.get_state(ids) for table in tables))


def test_lookups_return_bfloat16_and_updates_change_all_bits(store: rowmill.Store) -> None:
    spec: dict[str, Any] = {"dim": 16, "optimizer": SGD(lr=0.1), "initializer": Uniform(0.4, 0.6)}
    tables = [store.table(dtype, dtype=dtype, **spec) for dtype in DTYPES]
    ids = torch.arange(3)
    tables[1].put(ids, tables[0].get(ids))
    embeddings = EmbeddingCollection([Feature(table.name, table) for table in tables])
    batch = rowmill.RaggedBatch.from_lists({name: [[0], [1], [2]] for name in DTYPES})
    for _ in range(5):
        exact, split = embeddings(batch).chunk(2, dim=1)
        assert torch.equal(exact, tables[0].get(ids))
        assert torch.equal(split, cut(tables[1].get(ids)))
        (exact + split).sum().backward()
        assert torch.equal(*(table.get(ids) for table in tables))
    embeddings.eval()
    assert torch.equal(embeddings(batch)[:, 16:], cut(tables[1].get(ids))), "in evaluation too"


def test_a_converted_model_keeps_all_bits(store: rowmill.Store) -> None:
    plain = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(8, 1))
    weights = plain[0].weight.detach().clone()  # pyright: ignore[reportCallIssue]
    optimizer = SGD(lr=0.1)
    rowmill.convert(plain, store=store, optimizer=optimizer, dtype="split-bf16")
    assert torch.equal(plain.state_dict()["0.weight"], weights)
    rowmill.unconvert(plain)
    assert torch.equal(plain[0].weight, weights)


def test_a_copy_by_changes_trains_like_its_source(tmp_path: Path) -> None:
    gradients = torch.randn(20, 100, 7, generator=torch.Generator().manual_seed(1)) / 100

    def table_of(store: rowmill.Store) -> rowmill.Table:
        return store.table("t", dim=7, optimizer=RowwiseAdagrad(lr=0.01), dtype="split-bf16")

    with (
        rowmill.open(tmp_path / "source", memory="16MiB", seed=1) as source,
        rowmill.open(tmp_path / "copy", memory="16MiB", seed=1) as copy,
    ):
        table = table_of(source)
        for step in range(10):
            table.rmw(torch.arange(100), gradients[step])
        source.checkpoint()
        changes = rowmill.Changes(tmp_path / "source", since=0)
        assert [known.dtype for known in changes.tables()] == ["split-bf16"]
        changes.replay(copy)
        copied = table_of(copy)
        for step in range(10, 20):
            for one in (table, copied):
                one.rmw(torch.arange(100), gradients[step])
        assert torch.equal(copied.get(torch.arange(100)), table.get(torch.arange(100)))


def test_another_dtype_is_refused(store: rowmill.Store) -> None:
    store.table("t", dim=2, optimizer=SGD(lr=0.1), dtype="split-bf16")
    with pytest.raises(InvalidInput, match=r"dtype.*split-bf16.*bf16"):
        store.table("t", dim=2, optimizer=SGD(lr=0.1), dtype="bf16")
