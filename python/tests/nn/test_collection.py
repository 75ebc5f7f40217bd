"""Collections of many features: one store call per group in forward and backward, and results as in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import rowmill
from rowmill import RaggedBatch
from rowmill.ctr.models.embeddings import FeatureBags
from rowmill.errors import InvalidInput
from rowmill.init import Zeros
from rowmill.nn import EmbeddingCollection, Feature, StackedBags
from rowmill.optim import SGD, Adagrad

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.store.tables import Dtype

ROWS = 20


def calls(store: rowmill.Store) -> tuple[int, int]:
    stats = store.stats()
    return stats["calls"], stats["updates"]


def random_batch(features: list[str], size: int) -> RaggedBatch:
    lengths = torch.randint(0, 4, (len(features), size))
    values = torch.randint(0, ROWS, (int(lengths.sum()),))
    return RaggedBatch.from_lengths(features, values, lengths)


def test_one_store_call_per_group_and_direction(store: rowmill.Store) -> None:
    tables = [store.table(f"t{i}", dim=4, optimizer=SGD(lr=0.1)) for i in range(5)]
    tables += [store.table(f"u{i}", dim=8, optimizer=SGD(lr=0.1)) for i in range(3)]
    features = [Feature(f"f{i}", table) for i, table in enumerate(tables)]
    embeddings = EmbeddingCollection(features)
    batch = random_batch([feature.name for feature in features], 16)
    before = calls(store)
    pooled = embeddings(batch)
    assert pooled.shape == (16, 5 * 4 + 3 * 8)
    assert calls(store) == (before[0] + 2, before[1])
    pooled.sum().backward()
    assert calls(store) == (before[0] + 2, before[1] + 2)


def test_learning_rates_and_staleness_do_not_split_a_group(store: rowmill.Store) -> None:
    one = store.table("a", dim=4, optimizer=Adagrad(lr=0.1), staleness_bound=0)
    two = store.table("b", dim=4, optimizer=Adagrad(lr=0.2), staleness_bound=3)
    other = store.table("c", dim=4, optimizer=Adagrad(lr=0.1, eps=1e-3))
    assert one.group == two.group != other.group


def test_features_agree_with_torch_bags_over_steps(store: rowmill.Store) -> None:
    # Two groups, interleaved; "shared" serves two features with different pooling.
    narrow = store.table("narrow", dim=3, optimizer=SGD(lr=0.2), num_rows=ROWS)
    shared = store.table("shared", dim=2, optimizer=SGD(lr=0.1), num_rows=ROWS)
    alone = store.table("alone", dim=2, optimizer=SGD(lr=0.5), num_rows=ROWS)
    features = [
        Feature("a", shared, "sum"),
        Feature("b", narrow, "mean", padding_idx=3),
        Feature("c", shared, "mean"),
        Feature("d", alone, "sum"),
    ]
    embeddings = EmbeddingCollection(features)
    weights = {t.name: nn.Parameter(t.get(torch.arange(ROWS))) for t in (narrow, shared, alone)}
    optimizer = torch.optim.SGD(
        [{"params": [weights[t.name]], "lr": t.lr} for t in (narrow, shared, alone)]
    )
    for _ in range(4):
        batch = random_batch(["d", "c", "unused", "b", "a"], 7)
        pooled = embeddings(batch)
        expected = []
        for feature in features:
            ids, offsets = batch.bags(feature.name)
            expected.append(
                nn.functional.embedding_bag(
                    ids,
                    weights[feature.table.name],
                    offsets,
                    mode=feature.pooling,
                    padding_idx=feature.padding_idx,
                    include_last_offset=True,
                )
            )
        torch.testing.assert_close(pooled, torch.cat(expected, 1), rtol=1e-6, atol=1e-6)
        assert embeddings.split(pooled)["b"].shape == (7, 3)
        upstream = torch.randn_like(pooled)
        pooled.backward(upstream)
        optimizer.zero_grad()
        torch.cat(expected, 1).backward(upstream)
        optimizer.step()
        for table in (narrow, shared, alone):
            rows = table.get(torch.arange(ROWS))
            torch.testing.assert_close(rows, weights[table.name].data, rtol=1e-6, atol=1e-6)


def test_weights_of_a_batch_scale_ids_and_get_gradients(store: rowmill.Store) -> None:
    tables = [store.table(f"t{i}", dim=2, optimizer=SGD(lr=0.1), num_rows=ROWS) for i in range(2)]
    embeddings = EmbeddingCollection([Feature(t.name, t) for t in tables])
    rows = torch.stack([t.get(torch.arange(ROWS)) for t in tables])
    weights = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    offsets = torch.tensor([0, 2, 3])
    batch = RaggedBatch(("t0", "t1"), torch.tensor([4, 5, 6]), offsets, weights)
    pooled = embeddings(batch)
    expected = torch.cat([2 * rows[0, 4] - rows[0, 5], 0.5 * rows[1, 6]])
    torch.testing.assert_close(pooled[0].detach(), expected)
    pooled.sum().backward()
    sums = torch.stack([rows[0, 4].sum(), rows[0, 5].sum(), rows[1, 6].sum()])
    torch.testing.assert_close(weights.grad, sums)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "split-bf16"])
def test_bfloat16_outputs_and_row_gradients_are_rounded_float32(
    tmp_path: Path, dtype: Dtype
) -> None:
    seen: list[list[torch.Tensor]] = []
    for output_dtype in (torch.float32, torch.bfloat16):
        with rowmill.open(tmp_path / str(output_dtype), memory="16MiB", seed=3) as store:
            tables = [
                store.table(f"t{i}", dim=dim, dtype=dtype, optimizer=SGD(lr=0.5))
                for i, dim in enumerate([5, 5, 17])
            ]
            features = [Feature(t.name, t, "mean" if t is tables[1] else "sum") for t in tables]
            embeddings = EmbeddingCollection(features, output_dtype=output_dtype)
            torch.manual_seed(1)
            made: list[torch.Tensor] = []
            for weighted in (False, True):
                batch = random_batch([t.name for t in tables[:: 2 if weighted else 1]], 16)
                if weighted:
                    batch = replace(batch, weights=torch.rand(len(batch.values)).requires_grad_())
                    embeddings = EmbeddingCollection(features[::2], output_dtype=output_dtype)
                pooled = embeddings(batch)
                assert pooled.dtype == output_dtype
                gradient = torch.randn(pooled.shape).bfloat16()
                pooled.backward(gradient.to(output_dtype))
                embeddings.eval()
                made += [pooled.detach().bfloat16(), embeddings(batch).detach().bfloat16()]
                embeddings.train()
                if batch.weights is not None:
                    assert batch.weights.grad is not None
                    made.append(batch.weights.grad)
            seen.append(made + [t.get(torch.arange(ROWS)) for t in tables])
    for wide, narrow in zip(*seen, strict=True):
        assert torch.equal(wide, narrow)


def test_bags_of_one_id_of_split_rows_are_exact(store: rowmill.Store) -> None:
    table = store.table("t", dim=8, dtype="split-bf16", optimizer=SGD(lr=0.1))
    ids = torch.arange(30).view(30, 1)
    wide = StackedBags([Feature("t", table)])(ids)
    narrow = StackedBags([Feature("t", table)], output_dtype=torch.bfloat16)(ids)
    assert torch.equal(narrow.float(), wide)


def test_an_exported_lookup_keeps_its_dtype(store: rowmill.Store) -> None:
    table = store.table("t", dim=3, optimizer=SGD(lr=0.1), num_rows=ROWS)
    bags = StackedBags([Feature("t", table)], output_dtype=torch.bfloat16).eval()
    ids = torch.randint(0, ROWS, (6, 1))
    exported = torch.export.export(bags, (ids,)).module()
    assert torch.equal(exported(ids), bags(ids))
    assert exported(ids).dtype == torch.bfloat16


def test_stacked_bags_accept_the_inputs_of_models(store: rowmill.Store) -> None:
    tables = [store.table(f"t{i}", dim=3, optimizer=SGD(lr=0.1), num_rows=ROWS) for i in range(4)]
    stacked = StackedBags(Feature(t.name, t) for t in tables)
    plain = FeatureBags(
        nn.EmbeddingBag(ROWS, 3, mode="sum", _weight=t.get(torch.arange(ROWS))) for t in tables
    )
    ids = torch.randint(0, ROWS, (6, 4))
    torch.testing.assert_close(stacked(ids), plain(ids))
    flat = [torch.randint(0, ROWS, (9,)) for _ in tables]
    starts = [torch.tensor([0, 2, 2, 7]) for _ in tables]
    torch.testing.assert_close(stacked(flat, starts), plain(flat, starts))
    assert stacked(ids).is_contiguous()


def test_invalid_features_and_inputs_are_named(store: rowmill.Store) -> None:
    a = store.table("a", dim=2, optimizer=SGD(lr=0.1), initializer=Zeros())
    b = store.table("b", dim=3, optimizer=SGD(lr=0.1))
    with pytest.raises(InvalidInput, match="distinct names"):
        EmbeddingCollection([Feature("x", a), Feature("x", b)])
    with pytest.raises(InvalidInput, match="pooling of 'x'"):
        EmbeddingCollection([Feature("x", a, "max")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidInput, match=r"output_dtype must be .*, got torch.float16"):
        EmbeddingCollection([Feature("x", a)], output_dtype=torch.float16)
    with pytest.raises(InvalidInput, match=r"equal dims, got \[2, 3\]"):
        StackedBags([Feature("x", a), Feature("y", b)])
    with pytest.raises(InvalidInput, match=r"lacks features \['y'\]; it has \['x'\]"):
        EmbeddingCollection([Feature("x", a), Feature("y", b)])(
            RaggedBatch.from_lists({"x": [[1]]})
        )
