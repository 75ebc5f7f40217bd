"""Converting a torch model: equal results before and after, and errors that give the module's path."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward

import rowmill
from rowmill.errors import InvalidInput
from rowmill.optim import SGD, Adagrad

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 4, mode="sum", **options)
        self.towers = nn.ModuleList([nn.EmbeddingBag(10, 4, mode="mean", padding_idx=3)])
        self.user = nn.Embedding(7, 4, padding_idx=0)
        self.top = nn.Linear(12, 1)

    def forward(self, ids: Tensor) -> Tensor:
        parts = [self.words(ids), self.towers[0](ids % 10), self.user(ids[:, 0] % 7)]
        return self.top(torch.cat(parts, dim=1))


NAMES = ["words", "towers.0", "user"]


def test_a_converted_model_trains_equally_and_converts_back(store: rowmill.Store) -> None:
    torch.manual_seed(1)
    plain, model = Model(), Model()
    model.load_state_dict(plain.state_dict())
    before = list(plain.state_dict())
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.2))
    assert [name for name in model.state_dict() if name not in before] == []
    assert store.table_names() == sorted(NAMES)
    assert [name for name, _ in model.named_parameters()] == ["top.weight", "top.bias"]
    optimizers = [
        torch.optim.SGD(plain.parameters(), lr=0.2),
        torch.optim.SGD(model.parameters(), lr=0.2),
    ]
    for _ in range(3):
        ids = torch.randint(0, 20, (6, 5))
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            one(ids).square().mean().backward()
            optimizer.step()
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    state = model.state_dict()
    rowmill.unconvert(model)
    assert type(model.words) is nn.EmbeddingBag
    assert type(model.user) is nn.Embedding
    assert (model.towers[0].padding_idx, model.towers[0].mode) == (3, "mean")
    assert all((value == state[name]).all() for name, value in model.state_dict().items())


def test_the_plan_lists_table_group_bytes_and_tier(store: rowmill.Store) -> None:
    model = Model()
    model.wide = nn.Embedding(1000, 16)
    optimizer = {"towers.*": SGD(lr=0.1), "*": Adagrad(lr=0.1)}
    plan = rowmill.convert(
        model, store="nowhere", optimizer=optimizer, memory="32KiB", dry_run=True
    )
    assert plan.store is None
    assert isinstance(model.words, nn.EmbeddingBag), "a dry run must change nothing"
    got = [(p.path, p.table, p.num_rows, p.dim, p.group, p.bytes) for p in plan.tables]
    assert got == [
        ("words", "words", 20, 4, 0, 20 * 32),
        ("towers.0", "towers.0", 10, 4, 1, 10 * 16),
        ("user", "user", 7, 4, 0, 7 * 32),
        ("wide", "wide", 1000, 16, 2, 1000 * 128),
    ]
    assert {p.tier for p in plan.tables} == {"disk, 25% cached"}
    lines = str(plan).splitlines()
    assert lines[0].split() == [
        "module",
        "table",
        "rows",
        "dim",
        "optimizer",
        "group",
        "bytes",
        "tier",
    ]
    assert "125.0 KiB" in lines[4]
    assert lines[5] == "4 tables, 126.0 KiB of rows, memory 32.0 KiB"
    assert "memory" in str(rowmill.convert(model, store=store, optimizer=optimizer, dry_run=True))


def test_a_path_instead_of_a_store_opens_a_store(tmp_path: Path) -> None:
    model = Model()
    done = rowmill.convert(
        model,
        store=tmp_path / "s",
        memory="16MiB",
        optimizer=SGD(lr=0.1),
        prefix="m/",
        direct_index=False,
    )
    assert done.store is not None
    with done.store as store:
        assert store.table_names() == ["m/towers.0", "m/user", "m/words"]
        assert store.open_table("m/words").num_rows is None
        assert model.state_dict()["words.weight"].shape == (20, 4)
        store.checkpoint()
    again = Model()
    with rowmill.open(tmp_path / "s", memory="16MiB") as store:
        with pytest.raises(
            InvalidInput, match=r"words: table 'm/words' .* holds 20 rows; pass reuse"
        ):
            rowmill.convert(
                again, store=store, optimizer=SGD(lr=0.1), prefix="m/", direct_index=False
            )
        assert isinstance(again.words, nn.EmbeddingBag), "a failed conversion must change nothing"
        rowmill.convert(
            again, store=store, optimizer=SGD(lr=0.1), prefix="m/", direct_index=False, reuse=True
        )
        assert not (again.words.weight == Model().words.weight).all()


def test_tables_larger_than_memory_are_built_on_the_meta_device(store: rowmill.Store) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.EmbeddingBag(2**30, 64, mode="sum"))
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.1), direct_index=False)
    out = model(torch.tensor([[5, 2**30 - 1]]))
    assert 0.1 < out.abs().mean() < 10, "rows have torch's initial values"
    assert len(store.open_table("0")) == 2


def test_frozen_modules_stay_frozen(store: rowmill.Store) -> None:
    model = Model()
    model.words.weight.requires_grad_(False)
    done = rowmill.convert(model, store=store, optimizer={"[tu]*": Adagrad(lr=0.1)})
    assert done.tables[0].bytes == 20 * 16, "frozen rows have no optimizer state"
    before = model.words.weight
    model(torch.tensor([[1, 2]])).sum().backward()
    assert (model.words.weight == before).all()
    rowmill.unconvert(model)
    assert not model.words.weight.requires_grad


def test_modules_can_be_skipped(store: rowmill.Store) -> None:
    model = Model(max_norm=1.0)
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.1), skip=["words", "tow*"])
    assert store.table_names() == ["user"]


def shared() -> nn.Module:
    model = Model()
    model.head = nn.Linear(4, 20, bias=False)
    model.head.weight = model.words.weight
    return model


def same_module_twice() -> nn.Module:
    model = Model()
    model.again = model.user
    return model


def with_padding_row() -> nn.Module:
    model = Model()
    with torch.no_grad():
        model.user.weight[0] = 1.0
    return model


def with_infinity() -> nn.Module:
    model = Model()
    with torch.no_grad():
        model.user.weight[1, 2] = torch.inf
    return model


class Special(nn.Embedding):
    pass


def subclass() -> nn.Module:
    model = Model()
    model.user = Special(7, 4)
    return model


def maximum() -> nn.Module:
    model = Model()
    model.words = nn.EmbeddingBag(20, 4, mode="max")
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Model(max_norm=1.0), "words: max_norm is not supported"),
        (lambda: Model(scale_grad_by_freq=True), "words: scale_grad_by_freq is not supported"),
        (lambda: Model(dtype=torch.float64), "words: weights must be float32, got torch.float64"),
        (maximum, 'words: mode="max" is not supported'),
        (shared, "words: its weight is shared by words.weight, head.weight"),
        (same_module_twice, "user: its weight is shared by user.weight, again.weight"),
        (with_padding_row, "user: the row of padding_idx 0 is not 0"),
        (with_infinity, "user: a weight is NaN or infinite"),
        (subclass, "user: Special is a subclass"),
        (lambda: nn.Linear(1, 1), "holds no nn.Embedding"),
        (lambda: nn.Embedding(2, 2), "is an embedding itself"),
    ],
)
def test_modules_that_cannot_be_converted_are_named(
    store: rowmill.Store, make: Any, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        rowmill.convert(make(), store=store, optimizer=SGD(lr=0.1))
    assert store.table_names() == []


@pytest.mark.parametrize("configs", [None, [], [SimpleNamespace(name="goods")]])
def test_a_module_similar_to_a_collection_is_not_replaced(
    store: rowmill.Store, configs: list[Any] | None
) -> None:
    class Goods(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding_bags = nn.ModuleDict({"goods": nn.EmbeddingBag(5, 4, mode="sum")})

        def embedding_bag_configs(self) -> list[Any] | None:
            return configs

        def is_weighted(self) -> bool:
            return False

    model = nn.ModuleDict({"all": Goods()})
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.1))
    assert type(model["all"]) is Goods
    assert type(model["all"].embedding_bags["goods"]) is rowmill.nn.EmbeddingBag


def test_every_table_has_exactly_one_optimizer(store: rowmill.Store) -> None:
    model = Model()
    with pytest.raises(
        InvalidInput, match=r"towers.0: no optimizer; optimizer= names only 'words'"
    ):
        rowmill.convert(model, store=store, optimizer={"words": SGD(lr=0.1)})
    with pytest.raises(InvalidInput, match="words: its weight is also in the dense optimizer"):
        rowmill.convert(
            model,
            store=store,
            optimizer=SGD(lr=0.1),
            dense_optimizer=torch.optim.Adam(model.parameters()),
        )
    rowmill.convert(
        model,
        store=store,
        optimizer=SGD(lr=0.1),
        dense_optimizer=torch.optim.Adam(model.top.parameters()),
    )


def test_collections_cannot_be_converted_back(store: rowmill.Store) -> None:
    table = store.table("t", dim=2, optimizer=SGD(lr=0.1))
    bags = rowmill.nn.StackedBags([rowmill.nn.Feature("t", table)])
    with pytest.raises(InvalidInput, match="collection: EmbeddingCollection has no plain"):
        rowmill.unconvert(bags)


def test_a_tag_sets_the_optimizer_of_any_embedding(store: rowmill.Store) -> None:
    torch.manual_seed(1)
    plain, model = Model(), Model()
    model.load_state_dict(plain.state_dict())
    for tagged in (plain, model):
        embeddings = [tagged.words, tagged.towers[0], tagged.user]
        _apply_optimizer_in_backward(
            torch.optim.Adagrad, [module.weight for module in embeddings], {"lr": 0.3}
        )
    done = rowmill.convert(model, store=store)
    assert {plan.optimizer for plan in done.tables} == {Adagrad(lr=0.3)}
    for step in range(3):
        ids = torch.randint(0, 20, (5, 3), generator=torch.Generator().manual_seed(step))
        losses = [tagged(ids).square().mean() for tagged in (plain, model)]
        torch.testing.assert_close(losses[1], losses[0])
        for loss in losses:
            loss.backward()


def test_submodules_of_a_skipped_module_are_skipped(store: rowmill.Store) -> None:
    model = Model()
    done = rowmill.convert(model, store=store, optimizer=SGD(lr=0.1), skip=["towers"])
    assert [plan.path for plan in done.tables] == ["words", "user"]
    assert type(model.towers[0]) is nn.EmbeddingBag


def _train_once(model: nn.Module, ids: Tensor) -> None:
    model(ids).square().mean().backward()


@pytest.mark.parametrize("path", ["", "words"])
def test_rows_train_only_if_the_model_is_not_frozen(store: rowmill.Store, path: str) -> None:
    model = Model()
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.2))
    ids = torch.arange(20).reshape(4, 5)
    before = model.state_dict()
    assert model.get_submodule(path).requires_grad_(False) is model.get_submodule(path)
    _train_once(nn.Sequential(model, nn.Linear(1, 1)), ids)
    assert (model.state_dict()["words.weight"] == before["words.weight"]).all()
    user = model.state_dict()["user.weight"] == before["user.weight"]
    assert bool(user.all()) is (path == ""), "the other modules are not frozen"
    assert [p.requires_grad for p in model.top.parameters()] == [path != ""] * 2
    # requires_grad_ of a parent module unfreezes rows too.
    nn.Sequential(model).requires_grad_()
    _train_once(model, ids)
    assert not (model.state_dict()["words.weight"] == before["words.weight"]).all()


def test_a_module_that_was_frozen_when_it_was_converted_cannot_be_unfrozen(
    store: rowmill.Store,
) -> None:
    model = Model()
    model.words.requires_grad_(False)
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.2))
    model.user.requires_grad_(False)
    with pytest.raises(
        InvalidInput, match=r"^words: .* frozen when it was converted.*requires_grad_\(\) before"
    ):
        model.requires_grad_()
    assert model.user.frozen, "it must still be frozen"
    model.user.requires_grad_()


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, ids: model(ids).mean() + model.words.weight.norm(),
        lambda model, ids: nn.functional.linear(model(ids), model.user.weight[:, :1]).mean(),
        lambda model, ids: nn.functional.embedding(ids % 7, model.user.weight).mean(),
    ],
    ids=["regularisation", "weight tying", "functional"],
)
def test_a_gradient_of_the_weights_raises_and_changes_no_row(
    store: rowmill.Store, loss: Any
) -> None:
    model = Model()
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.2))
    before = model.state_dict()
    ids = torch.randint(0, 20, (6, 5))
    with pytest.raises(InvalidInput, match=r"table '(words|user)' cannot reach its rows.*skip="):
        loss(model, ids).backward()
    after = model.state_dict()
    assert all((after[f"{name}.weight"] == before[f"{name}.weight"]).all() for name in NAMES)


def test_weights_can_be_read_without_gradients(store: rowmill.Store) -> None:
    model = Model()
    rowmill.convert(model, store=store, optimizer=SGD(lr=0.2))
    assert model.words.weight.requires_grad
    with torch.no_grad():
        assert model.words.weight.numpy().shape == (20, 4)
    model.words.requires_grad_(False)
    assert not model.words.weight.requires_grad
    (model(torch.randint(0, 20, (6, 5))).mean() + model.words.weight.norm()).backward()


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """A fake process group of two ranks, of which only this one exists."""
    # This import registers the backend "fake".
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_process_group_of_several_ranks_is_refused(store: rowmill.Store, tmp_path: Path) -> None:
    model = Model()
    for where in (store, tmp_path / "new"):
        with pytest.raises(InvalidInput, match=r"^words: .* 2 ranks .*ranks=rowmill"):
            rowmill.convert(model, store=where, optimizer=SGD(lr=0.2))
    assert isinstance(model.words, nn.EmbeddingBag), "the model must be unchanged"
    with pytest.raises(InvalidInput, match=r"^placement needs ranks="):
        rowmill.convert(model, store=store, optimizer=SGD(lr=0.2), placement="whole")
    assert store.table_names() == []
    assert not (tmp_path / "new").exists()
    assert len(rowmill.convert(model, store=store, optimizer=SGD(lr=0.2), dry_run=True).tables) == 3
    # Frozen rows are equal on all ranks, so they may be converted.
    model.requires_grad_(False)
    rowmill.convert(model, store=store)
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 1)
