"""Collections of the real TorchRec before and after `rowmill.convert`: outputs, updates and errors.

Every converted model is compared with the same model over TorchRec's own modules, whose optimizers torch applies in the
backward pass. Both get the same batches.
"""

from __future__ import annotations

import copy
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as tag
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)
from torchrec import optim as torchrec_optim

import rowmill
from rowmill import optim
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

ADAGRAD = optim.Adagrad(lr=0.1)
KEYS = ["clicks", "user", "shared"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[rowmill.Store]:
    with rowmill.open(tmp_path / "store", memory="64MiB") as opened:
        yield opened


class Ranker(nn.Module):
    """Uses the interface of a KeyedTensor: values, single keys, the dictionary, regrouping."""

    def __init__(self, *, weighted: bool = False) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="goods",
                    embedding_dim=4,
                    num_embeddings=20,
                    feature_names=["clicks", "shared"],
                ),
                EmbeddingBagConfig(
                    name="users",
                    embedding_dim=8,
                    num_embeddings=10,
                    feature_names=["user"],
                    pooling=PoolingType.SUM if weighted else PoolingType.MEAN,
                ),
                EmbeddingBagConfig(
                    name="wide", embedding_dim=4, num_embeddings=20, feature_names=["shared"]
                ),
            ],
            is_weighted=weighted,
        )
        self.over = nn.Linear(20, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.ebc(features)
        assert pooled["user"].shape[1] == 8
        groups = KeyedTensor.regroup(
            [pooled], [["user"], ["clicks", "shared@goods", "shared@wide"]]
        )
        return self.over(torch.cat(groups, dim=1)) + pooled.to_dict()["clicks"].sum()


class Sequence(nn.Module):
    def __init__(self, *, need_indices: bool = False) -> None:
        super().__init__()
        self.ec = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name="goods",
                    embedding_dim=4,
                    num_embeddings=20,
                    feature_names=["clicks", "shared"],
                ),
                EmbeddingConfig(
                    name="users", embedding_dim=4, num_embeddings=10, feature_names=["user"]
                ),
            ],
            need_indices=need_indices,
        )

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        return self.ec(features)


def batch(seed: int, *, weighted: bool = False, dtype: torch.dtype = torch.int64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (len(KEYS) * 5,), generator=generator)
    values = torch.randint(0, 10, (int(lengths.sum()),), generator=generator).to(dtype)
    weights = torch.rand(len(values), generator=generator) if weighted else None
    return KeyedJaggedTensor.from_lengths_sync(KEYS, values, lengths.to(torch.int32), weights)


def same_training(plain: nn.Module, stored: nn.Module, steps: int = 4, **kind: Any) -> None:
    """Train both for some steps and compare losses; the dense layers use SGD."""
    dense = [torch.optim.SGD(m.over.parameters(), lr=0.05) for m in (plain, stored)]
    for step in range(steps):
        losses = [m(batch(step, **kind)).square().mean() for m in (plain, stored)]
        torch.testing.assert_close(losses[1], losses[0])
        for loss, optimizer in zip(losses, dense, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_bags_give_the_same_keyed_tensor(store: rowmill.Store) -> None:
    plain = Ranker()
    stored = copy.deepcopy(plain)
    done = rowmill.convert(stored, store=store, optimizer=ADAGRAD)
    paths = ["ebc.embedding_bags.goods", "ebc.embedding_bags.users", "ebc.embedding_bags.wide"]
    assert [plan.path for plan in done.tables] == paths == sorted(store.table_names())
    for dtype in (torch.int64, torch.int32):
        expected, found = plain.ebc(batch(1, dtype=dtype)), stored.ebc(batch(1, dtype=dtype))
        assert type(found) is KeyedTensor
        assert found.keys() == expected.keys()
        assert found.offset_per_key() == expected.offset_per_key()
        torch.testing.assert_close(found.values(), expected.values())
        torch.testing.assert_close(stored(batch(1)), plain(batch(1)))
    assert stored.state_dict().keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert torch.equal(stored.state_dict()[name], value)
    names = [config.name for config in stored.ebc.embedding_bag_configs()]
    assert names == ["goods", "users", "wide"]
    assert not stored.ebc.is_weighted()
    assert stored.ebc.device == torch.device("cpu")
    assert not list(stored.ebc.parameters()), "the weights must be in the store only"
    assert stored.ebc.source.embedding_bags["goods"].weight.is_meta
    # Another order of keys, and a key that no table uses.
    order = batch(1).permute([2, 0, 1])
    torch.testing.assert_close(stored.ebc(order).values(), plain.ebc(batch(1)).values())


def test_weighted_bags_train_equally(store: rowmill.Store) -> None:
    plain = Ranker(weighted=True)
    stored = copy.deepcopy(plain)
    tag(torch.optim.Adagrad, plain.ebc.parameters(), {"lr": 0.1})
    rowmill.convert(stored, store=store, optimizer=ADAGRAD)
    assert stored.ebc.is_weighted()
    same_training(plain, stored, weighted=True)
    with pytest.raises(InvalidInput, match="is_weighted is True, but the features have no"):
        stored(batch(1))


@pytest.mark.parametrize(
    ("kind", "arguments", "spec"),
    [
        (torch.optim.SGD, {"lr": 0.1}, optim.SGD(0.1)),
        (torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-3}, optim.Adagrad(0.1, 1e-3)),
        (
            torch.optim.Adagrad,
            {"initial_accumulator_value": 0.5, "weight_decay": 0, "foreach": True},
            optim.Adagrad(0.01, 1e-10, 0.5),
        ),
        (torchrec_optim.RowWiseAdagrad, {"lr": 0.1, "eps": 1e-3}, optim.RowwiseAdagrad(0.1, 1e-3)),
    ],
)
def test_tags_select_the_optimizer_of_rows(
    store: rowmill.Store, kind: type, arguments: dict[str, Any], spec: object
) -> None:
    plain = Ranker()
    stored = copy.deepcopy(plain)
    for model in (plain, stored):
        tag(kind, model.ebc.parameters(), arguments)
    done = rowmill.convert(stored, store=store)
    assert {plan.optimizer for plan in done.tables} == {spec}
    same_training(plain, stored)


@pytest.mark.parametrize(
    ("kind", "arguments", "spec"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5}, optim.MomentumSGD(0.1, 0.5)),
        (torch.optim.Adam, {"betas": (0.8, 0.9)}, optim.Adam(1e-3, 0.8, 0.9)),
        (torch.optim.SparseAdam, {"lr": 0.2}, optim.Adam(0.2)),
        (torchrec_optim.SGD, {"lr": 0.3}, optim.SGD(0.3)),
        (torchrec_optim.Adagrad, {"lr": 0.3}, optim.Adagrad(0.3, 1e-8)),
        (torchrec_optim.Adam, {"lr": 0.3, "eps": 1e-6}, optim.Adam(0.3, eps=1e-6)),
        (torchrec_optim.PartialRowWiseAdam, {"lr": 0.3}, optim.RowwiseAdam(0.3)),
    ],
)
def test_tagged_torch_optimizers_become_row_optimizers(
    store: rowmill.Store, kind: type, arguments: dict[str, Any], spec: object
) -> None:
    model = Ranker()
    tag(kind, model.ebc.parameters(), arguments)
    assert {plan.optimizer for plan in rowmill.convert(model, store=store).tables} == {spec}
    model(batch(1)).sum().backward()


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        (
            torchrec_optim.LAMB,
            {},
            "goods: tagged with torchrec.optim.optimizers.LAMB, which has no",
        ),
        (
            torch.optim.AdamW,
            {},
            r"AdamW, which has no equivalent for rows; tag it with one of SGD",
        ),
        (
            torch.optim.Adam,
            {"amsgrad": True},
            "tagged with Adam and amsgrad = True, .* remove amsgrad",
        ),
        (
            torch.optim.SGD,
            {"weight_decay": 0.1},
            "SGD and weight_decay = 0.1, which rows do not support",
        ),
        (torchrec_optim.Adagrad, {"lr": "fast"}, "arguments that are not numbers: lr = 'fast'"),
    ],
)
def test_tags_of_unsupported_optimizers_are_refused(
    store: rowmill.Store, kind: type, arguments: dict[str, Any], said: str
) -> None:
    model = Ranker()
    tag(kind, [model.ebc.embedding_bags["goods"].weight], arguments)
    with pytest.raises(InvalidInput, match=said):
        rowmill.convert(model, store=store)
    assert isinstance(model.ebc, EmbeddingBagCollection), "the model must be unchanged"
    assert store.table_names() == []


def test_a_table_has_one_optimizer(store: rowmill.Store) -> None:
    model = Ranker()
    weights = {name: table.weight for name, table in model.ebc.embedding_bags.items()}
    tag(torch.optim.SGD, [weights["goods"]], {"lr": 0.1})
    with pytest.raises(InvalidInput, match=r"users: no optimizer; .* nothing, and the weights"):
        rowmill.convert(model, store=store)
    with pytest.raises(InvalidInput, match=r"goods: two optimizers, SGD\(lr=0.1\) by apply"):
        rowmill.convert(model, store=store, optimizer=ADAGRAD)
    named = {"*.users": ADAGRAD, "*.wide": optim.SGD(1.0)}
    done = rowmill.convert(model, store=store, optimizer=named)
    assert [plan.optimizer for plan in done.tables] == [optim.SGD(0.1), ADAGRAD, optim.SGD(1.0)]
    twice = Ranker()
    for _ in range(2):
        tag(torch.optim.SGD, [twice.ebc.embedding_bags["goods"].weight], {"lr": 0.1})
    with pytest.raises(InvalidInput, match="tagged with 2 optimizers, SGD, SGD; tag it once"):
        rowmill.convert(twice, store=store, prefix="twice.")


@pytest.mark.parametrize("need_indices", [False, True])
def test_embedding_collections_give_equal_rows_and_train_equally(
    store: rowmill.Store, need_indices: bool
) -> None:
    plain = Sequence(need_indices=need_indices)
    stored = copy.deepcopy(plain)
    for model in (plain, stored):
        tag(torch.optim.Adagrad, model.ec.parameters(), {"lr": 0.1})
    rowmill.convert(stored, store=store)
    for step in range(3):
        expected, found = plain(batch(step)), stored(batch(step))
        assert list(found) == list(expected)
        for name, jagged in expected.items():
            assert type(found[name]) is JaggedTensor
            torch.testing.assert_close(found[name].values(), jagged.values())
            assert found[name].lengths().tolist() == jagged.lengths().tolist()
            if need_indices:
                assert torch.equal(found[name].weights(), jagged.weights())
        for outputs in (expected, found):
            sum(jagged.values().square().sum() for jagged in outputs.values()).backward()
    assert stored.ec.need_indices() is need_indices
    assert stored.ec.embedding_dim() == 4
    assert [config.name for config in stored.ec.embedding_configs()] == ["goods", "users"]
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(stored.state_dict()[name], value)


def test_a_converted_model_can_be_converted_back(store: rowmill.Store) -> None:
    model = nn.ModuleDict({"bags": Ranker(), "rows": Sequence()})
    before = copy.deepcopy(model.state_dict())
    rowmill.convert(model, store=store, optimizer=ADAGRAD, direct_index=False)
    rowmill.unconvert(model)
    assert isinstance(model["bags"].ebc, EmbeddingBagCollection)
    assert isinstance(model["rows"].ec, EmbeddingCollection)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model["bags"](batch(1)).sum().backward()


def test_evaluation_and_frozen_tables_change_nothing(store: rowmill.Store) -> None:
    model = Ranker()
    for table in model.ebc.embedding_bags.values():
        table.weight.requires_grad_(False)
    rowmill.convert(model, store=store)
    assert model.ebc.frozen
    assert not model.ebc(batch(1)).values().requires_grad


def test_a_collection_on_the_meta_device_is_initialized_in_the_store(store: rowmill.Store) -> None:
    config = EmbeddingBagConfig(
        name="huge", embedding_dim=4, num_embeddings=10**10, feature_names=["clicks"]
    )
    model = nn.ModuleDict(
        {"ebc": EmbeddingBagCollection(tables=[config], device=torch.device("meta"))}
    )
    rowmill.convert(model, store=store, optimizer=ADAGRAD, direct_index=False)
    assert model["ebc"](batch(1)).values().shape == (5, 4)


def test_errors_of_convert_and_forward_say_why(store: rowmill.Store) -> None:
    ranker = Ranker()
    with pytest.raises(InvalidInput, match="the model is itself a collection"):
        rowmill.convert(ranker.ebc, store=store, optimizer=ADAGRAD)
    with pytest.raises(InvalidInput, match=r"skip names ebc.*goods, but .*skip=\['ebc'\]"):
        rowmill.convert(ranker, store=store, optimizer=ADAGRAD, skip=["*.goods"])
    with pytest.raises(InvalidInput, match="the model holds no"):
        rowmill.convert(ranker, store=store, optimizer=ADAGRAD, skip=["ebc"])
    rowmill.convert(ranker, store=store, optimizer=ADAGRAD)
    with pytest.raises(InvalidInput, match="features must be a KeyedJaggedTensor, got a dict"):
        ranker({})
    with pytest.raises(
        InvalidInput, match=r"lacks features \['shared', 'user'\]; it has \['clicks'"
    ):
        ranker(batch(1).split([1, 2])[0])
    sequence = Sequence()
    rowmill.convert(sequence, store=store, optimizer=ADAGRAD)
    with pytest.raises(InvalidInput, match="lacks feature 'shared'"):
        sequence(batch(1).split([1, 2])[0])
    uneven = KeyedJaggedTensor(
        KEYS,
        torch.tensor([1, 2, 3]),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[1], [1], [1]],
    )
    with pytest.raises(InvalidInput, match="a different batch size per key"):
        ranker(uneven)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[3] / "examples/torchrec_collection.py"
    ran = runpy.run_path(str(example))
    assert ran["loss"].isfinite()
