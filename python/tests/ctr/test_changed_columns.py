"""Columns that are added to a trained click model and dropped from it, for every model.

What could break: an input of a layer is taken for that of another column, an added column changes predictions before it learns or
never learns, or the optimizer's state belongs to other weights. Vectors of columns are drawn here, so that no store is needed; a
dropped column must act as one whose inputs are all 0.
"""

from __future__ import annotations

import json
import re
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from python.tests.partition.runs import CLICK_MODELS
from rowmill.config.config import section_from
from rowmill.config.setting import ConfigError
from rowmill.ctr.changed_columns import ChangedColumns, known_columns
from rowmill.ctr.click_model import ClickModel, build_model, schema_for
from rowmill.ctr.data import Schema
from rowmill.ctr.data.schema import schema_from
from rowmill.ctr.input_names import input_names
from rowmill.optim import SplitAdagrad, SplitSGD

if TYPE_CHECKING:
    from collections.abc import Callable

    from rowmill.config.sections import ModelConfig

B, DIM, PLACES = 6, 4, 3
NUMERIC = ("n1", "n2", "n3", "n4")
IDS = ("user", "item", "shop", "city", "hour")


def model_config(kind: str, **more: Any) -> ModelConfig:
    widths = {"bottom": [8], "top": [8], "deep": [8, 6], "attention": [5], "rank": 3, "heads": 2}
    return section_from("model", {"kind": kind, "dim": DIM, **widths, **more})


def columns(
    config: ModelConfig, dense: tuple[str, ...], ids: tuple[str, ...], items: tuple[str, ...] = ()
) -> Schema:
    given = Schema(
        label="y",
        tasks=("bought",),
        dense=dense,
        ids=ids,
        item_ids=items or tuple(name for name in ("item", "shop") if name in ids),
        histories=(("item", "items_before"),),
        places=PLACES,
    )
    return schema_for(config, given)


class Vectors(nn.Module):
    """Embeddings with a vector of each column and row of a batch, in place of those of ids."""

    def __init__(self, schema: Schema, zero: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.pooled: list[Tensor] = []
        for number, feature in enumerate(schema.id_features):
            name = schema.ids[feature]
            place = number if number >= len(schema.ids) else 0
            drawn = torch.randn(
                B, DIM, generator=seeded(f"{name} {place - len(schema.ids)}" if place else name)
            )
            self.pooled.append(torch.zeros(B, DIM) if name in zero else drawn)

    def forward(self, ids: Tensor, offsets: None = None) -> Tensor:
        return torch.stack(self.pooled, dim=1)


def seeded(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(
        sum(ord(letter) << 5 * at for at, letter in enumerate(name)) % 2**31
    )


def logits(model: ClickModel, schema: Schema, zero: tuple[str, ...] = ()) -> Tensor:
    numeric = [
        torch.zeros(B) if name in zero else torch.rand(B, generator=seeded(name))
        for name in schema.dense
    ]
    dense = torch.stack(numeric, dim=1) if numeric else torch.zeros(B, 0)
    ids = torch.zeros(B, len(schema.id_features), dtype=torch.int64)
    lengths = [torch.tensor([0, 1, 2, 3, 1, 3])] if schema.histories else []
    narrow = any(weight.dtype == torch.bfloat16 for weight in model.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        return model(dense, ids, *lengths).float()


def built(config: ModelConfig, schema: Schema, zero: tuple[str, ...] = (), seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return build_model(config, Vectors(schema, zero), schema)


def changed(config: ModelConfig, before: Schema, after: Schema) -> ChangedColumns:
    known = known_columns(config, before, after)
    change = ChangedColumns.between(config, before, known)
    assert change is not None
    return change


def trained(model: Any, schema: Schema, make: Callable[..., torch.optim.Optimizer]) -> Any:
    """Three steps; returns the optimizer."""
    optimizer = make(model.parameters())
    for _ in range(3):
        step(model, schema, optimizer)
    return optimizer


def step(model: Any, schema: Schema, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    optimizer.zero_grad()
    loss = logits(model, schema).sigmoid().square().mean()
    loss.backward()
    optimizer.step()
    model.eval()


def moved(change: ChangedColumns, model: Any, optimizer: Any, new: Any, new_optimizer: Any) -> None:
    saved = deepcopy({"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()})
    content = change.adapted(saved, new, new_optimizer)
    new.load_state_dict(content["model"])
    new_optimizer.load_state_dict(content["optimizer"])
    new.eval()


adam = partial(torch.optim.Adam, lr=0.01)


@pytest.mark.parametrize("kind", CLICK_MODELS)
@pytest.mark.parametrize("deep", [[8, 6], []])
def test_input_names_are_those_of_the_weights(kind: str, deep: list[int]) -> None:
    config = model_config(kind, deep=deep)
    ids = IDS[:2] if kind == "ncf" else IDS[:3]
    small = columns(config, NUMERIC[:2], ids)
    large = columns(config, NUMERIC, ids if kind == "ncf" else IDS)
    shapes: list[dict[str, torch.Size]] = []
    for schema in (small, large):
        weights = dict(built(config, schema).named_parameters())
        names = input_names(config, schema)
        for name, axes in names.items():
            lengths = [len(of) if of is not None else None for of in axes]
            assert len(lengths) == weights[name].dim()
            for length, size in zip(lengths, weights[name].shape, strict=True):
                assert length in (None, size), name
            assert all(of is None or len(set(of)) == len(of) for of in axes)
        shapes.append({name: weight.shape for name, weight in weights.items()})
    differing = {name for name, shape in shapes[0].items() if shapes[1][name] != shape}
    assert differing <= set(input_names(config, small))


@pytest.mark.parametrize("kind", CLICK_MODELS)
@pytest.mark.parametrize("deep", [[8, 6], []])
def test_an_added_column_changes_no_prediction_and_then_learns(kind: str, deep: list[int]) -> None:
    config = model_config(kind, deep=deep)
    ids = IDS[:2] if kind == "ncf" else IDS[:3]
    before = columns(config, NUMERIC[:2], ids)
    # Also in another order.
    after = columns(
        config, ("n3", "n2", "n1"), ids if kind == "ncf" else ("city", *ids[::-1], "hour")
    )
    change = changed(config, before, after)
    old = built(config, before)
    optimizer = trained(old, before, adam)
    new = built(config, change.after, seed=2)
    new_optimizer = adam(new.parameters())
    moved(change, old, optimizer, new, new_optimizer)
    torch.testing.assert_close(logits(new, change.after), logits(old, before))
    for _ in range(3):
        step(new, change.after, new_optimizer)
    for name in ("n3",) if kind == "ncf" else ("n3", "city", "hour"):
        assert not torch.allclose(
            logits(new, change.after), with_zero(new, config, change.after, name)
        ), name


def with_zero(model: Any, config: ModelConfig, schema: Schema, name: str) -> Tensor:
    """Logits if all inputs of a column were 0."""
    other = built(config, schema, (name,))
    other.load_state_dict(model.state_dict())
    other.eval()
    return logits(other, schema, (name,))


@pytest.mark.parametrize("kind", [kind for kind in CLICK_MODELS if kind != "ncf"])
def test_a_dropped_column_acts_as_zeros(kind: str) -> None:
    config = model_config(kind)
    before, after = (
        columns(config, NUMERIC, IDS),
        columns(config, ("n4", "n1"), ("hour", "item", "user")),
    )
    change = changed(config, before, after)
    old = built(config, before)
    optimizer = trained(old, before, adam)
    new = built(config, change.after, seed=2)
    moved(change, old, optimizer, new, adam(new.parameters()))
    dropped = ("n2", "n3", "shop", "city")
    expected = built(config, before, dropped)
    expected.load_state_dict(old.state_dict())
    expected.eval()
    torch.testing.assert_close(logits(new, change.after), logits(expected, before, dropped))


OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "sgd": (torch.optim.SGD, 1e-4),
    "adagrad": (torch.optim.Adagrad, 1e-4),
    "adam": (torch.optim.Adam, 1e-4),
    "split sgd": (SplitSGD, 0.05),
    "split adagrad": (SplitAdagrad, 0.05),
}
"""Classes, and how much logits may differ in the order of sums."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["dlrm", "dcn_v2", "wide_deep", "mt_wide_deep", "din"])
def test_the_optimizer_goes_on_with_its_state(kind: str, optimizer: str) -> None:
    """A column is added, and dropped again: then the model has all it had, in another order."""
    config, (made, close) = model_config(kind), OPTIMIZERS[optimizer]
    make = partial(made, lr=0.02)
    before = columns(config, NUMERIC[:2], IDS[:3])
    models: list[Any] = [built(config, before)]
    optimizers = [trained(models[0], before, make)]
    schema = before
    for dense, ids in ((NUMERIC[2::-1], IDS[3::-1]), (NUMERIC[:2][::-1], IDS[:3][::-1])):
        change = changed(config, schema, columns(config, dense, ids))
        schema = change.after
        models.append(built(config, schema, seed=2))
        optimizers.append(make(models[-1].parameters()))
        moved(change, models[-2], optimizers[-2], models[-1], optimizers[-1])
    for _ in range(3):
        step(models[0], before, optimizers[0])
        step(models[2], schema, optimizers[2])
        step(
            models[1],
            changed(config, before, columns(config, NUMERIC[2::-1], IDS[3::-1])).after,
            optimizers[1],
        )
    found, expected = logits(models[2], schema), logits(models[0], before)
    torch.testing.assert_close(found, expected, rtol=close, atol=close / 2)


def test_numbers_are_never_given_to_another_feature() -> None:
    config = model_config("ffnn")
    first = columns(config, NUMERIC, IDS[:3])
    assert first.feature_numbers == (0, 1, 2)
    second = known_columns(config, first, columns(config, NUMERIC, ("item", "city", "user")))
    assert second.feature_numbers == (1, 3, 0)
    assert second.dropped == (("shop", 2),)
    third = known_columns(config, second, columns(config, NUMERIC, ("hour", "item", "shop")))
    assert third.feature_numbers == (4, 1, 2)
    assert dict(third.dropped) == {"user": 0, "city": 3}
    # A file of a run has them all; that of a run without changes is as before.
    assert schema_from(json.loads(json.dumps(third.as_dict()))) == third
    assert not {"numbers", "gated", "dropped"} & first.as_dict().keys()
    same = known_columns(config, third, columns(config, NUMERIC, third.ids))
    assert ChangedColumns.between(config, third, same) is None


@pytest.mark.parametrize(
    ("kind", "after", "says"),
    [
        ("ffnn", {"label": "z"}, "labels of the log was ['y'] and is ['z']"),
        (
            "mt_wide_deep",
            {"tasks": ("liked",)},
            "labels of the log was ['y', 'bought'] and is ['y', 'liked']",
        ),
        ("din", {"places": 4}, "places of the log was 3 and is 4"),
        ("din", {"histories": (("item", "others"),)}, "histories of the log was"),
        ("bst", {"histories": (("item", "a"), ("shop", "b"))}, "id columns without a history"),
        ("ncf", {"ids": ("item", "user")}, "only numeric columns can be added or dropped"),
        (
            "two_tower",
            {"item_ids": ("item",)},
            "'shop' would move to the other tower: add it to item_ids",
        ),
        ("two_tower", {"item_ids": ("item", "shop", "user")}, "remove it from item_ids"),
    ],
)
def test_other_changes_are_refused(kind: str, after: dict[str, Any], says: str) -> None:
    config = model_config(kind)
    ids = IDS[:2] if kind == "ncf" else IDS
    before = columns(config, NUMERIC, ids)
    given = replace(before, columns=(), **after)
    with pytest.raises(ConfigError, match=re.escape(says)):
        ChangedColumns.between(config, before, known_columns(config, before, given))
