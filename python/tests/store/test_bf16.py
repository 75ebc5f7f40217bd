"""Tables of bf16 weights: half the bytes, float32 in calls, and bit-identical results when a run is repeated.

Tests in Rust cover rounding, kernels and crashes; tests in train/ cover training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import rowmill
from rowmill.errors import InvalidInput
from rowmill.init import Constant
from rowmill.nn import EmbeddingCollection, Feature
from rowmill.optim import SGD, Adagrad

if TYPE_CHECKING:
    from pathlib import Path


def is_bf16(weights: np.ndarray[Any, Any]) -> bool:
    return not (weights.view(np.uint32) & 0xFFFF).any()


def test_rows_are_rounded_like_torch_and_take_half_the_bytes(store: rowmill.Store) -> None:
    half = store.table("half", dim=64, optimizer=SGD(lr=1.0), dtype="bf16")
    full = store.table("full", dim=64, optimizer=SGD(lr=1.0))
    assert (half.dtype, full.dtype, store.open_table("half").dtype) == ("bf16", "fp32", "bf16")
    assert [store.stats()["tables"][name]["row_bytes"] for name in ("half", "full")] == [128, 256]
    assert (repr(half), repr(full).count("dtype")) == (
        "Table('half', dim=64, dtype='bf16', optimizer=SGD(lr=1.0))",
        0,
    )
    values = torch.randn(100, 64) * torch.logspace(-30, 30, 64)
    half.put(torch.arange(100), values)
    found = half.get(torch.arange(100))
    assert found.dtype == torch.float32
    assert torch.equal(found, values.bfloat16().float())
    assert is_bf16(half.get(np.arange(1000, 1010))), "initial values are rounded too"


def test_state_stays_float32(store: rowmill.Store) -> None:
    table = store.table("t", dim=3, optimizer=Adagrad(lr=0.1), dtype="bf16")
    table.rmw([1], np.full((1, 3), 0.3, np.float32))
    expected = np.float32(0.3) * np.float32(0.3)
    assert table.get_state([1]).tolist() == [[expected] * 3]
    assert is_bf16(table.get([1]))


def test_bf16_and_fp32_modules_train_together(store: rowmill.Store) -> None:
    spec: dict[str, Any] = {"dim": 16, "optimizer": SGD(lr=0.1), "initializer": Constant(0.5)}
    tables = [store.table(dtype, dtype=dtype, **spec) for dtype in ("bf16", "fp32")]
    embeddings = EmbeddingCollection([Feature(table.name, table) for table in tables])
    batch = rowmill.RaggedBatch.from_lists({name: [[1, 2], [2]] for name in ("bf16", "fp32")})
    for _ in range(20):
        embeddings(batch).sum().backward()
    narrow, exact = (table.get([1, 2, 3]) for table in tables)
    assert is_bf16(narrow)
    np.testing.assert_allclose(narrow, exact, rtol=0, atol=0.1)
    assert not np.array_equal(narrow, exact)


def test_a_converted_model_keeps_its_rounded_weights(store: rowmill.Store) -> None:
    plain = nn.Sequential(nn.EmbeddingBag(50, 8, mode="sum"), nn.Linear(8, 1))
    weights = plain[0].weight.detach().clone()  # pyright: ignore[reportCallIssue]
    plan = rowmill.convert(plain, store=store, optimizer=SGD(lr=0.1), dtype="bf16", dry_run=True)
    assert [(entry.dtype, entry.bytes) for entry in plan.tables] == [("bf16", 50 * 16)]
    rowmill.convert(plain, store=store, optimizer=SGD(lr=0.1), dtype="bf16")
    assert torch.equal(plain.state_dict()["0.weight"], weights.bfloat16().float())


def test_a_reopened_store_gives_the_bits_of_an_uninterrupted_run(tmp_path: Path) -> None:
    gradients = torch.randn(20, 100, 7, generator=torch.Generator().manual_seed(1)) / 100

    def steps(path: Path, first: int, last: int) -> bytes:
        with rowmill.open(path, memory="16MiB") as store:
            table = store.table("t", dim=7, optimizer=Adagrad(lr=0.01), dtype="bf16")
            for step in range(first, last):
                table.rmw(torch.arange(100), gradients[step])
            store.checkpoint()
            return table.get(np.arange(100)).tobytes()

    whole = steps(tmp_path / "whole", 0, 20)
    steps(tmp_path / "parts", 0, 8)
    assert steps(tmp_path / "parts", 8, 20) == whole


def test_changes_name_the_dtype_and_hold_float32(tmp_path: Path) -> None:
    with rowmill.open(tmp_path, memory="16MiB") as store:
        table = store.table("t", dim=3, optimizer=SGD(lr=1.0), dtype="bf16")
        table.put([5], [[1.0, -2.5, 0.125]])
        store.checkpoint()
    changes = rowmill.Changes(tmp_path, since=0)
    assert [known.dtype for known in changes.tables()] == ["bf16"]
    assert [batch.weights.tolist() for batch in changes] == [[[1.0, -2.5, 0.125]]]


@pytest.mark.parametrize("dtype", ["fp16", "float32", "", "BF16"])
def test_an_invalid_dtype_is_named(store: rowmill.Store, dtype: Any) -> None:
    says = f'dtype must be "fp32", "bf16" or "split-bf16", got "{dtype}"'
    with pytest.raises(InvalidInput, match=says):
        store.table("t", dim=4, optimizer=SGD(lr=0.1), dtype=dtype)
    model = nn.Sequential(nn.EmbeddingBag(5, 8))
    with pytest.raises(InvalidInput, match=says):
        rowmill.convert(model, store=store, optimizer=SGD(lr=0.1), dtype=dtype)
    assert store.table_names() == []


def test_values_beyond_bf16_and_another_dtype_are_refused(store: rowmill.Store) -> None:
    table = store.table("t", dim=2, optimizer=SGD(lr=0.1), dtype="bf16")
    with pytest.raises(InvalidInput, match=r'values must be below .* "t", whose dtype is bf16'):
        table.put([1], [[0.0, 3.4e38]])
    assert len(table) == 0
    with pytest.raises(InvalidInput, match=r"dtype.*bf16.*fp32"):
        store.table("t", dim=2, optimizer=SGD(lr=0.1))
