"""State dicts of stored modules: torch's names, the size limit, and the alternative above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from rowmill.errors import InvalidInput
from rowmill.nn import Embedding, EmbeddingBag, dense_state_dict, load_dense_state_dict, tables_of
from rowmill.optim import SGD

if TYPE_CHECKING:
    import rowmill


class Model(nn.Module):
    def __init__(self, store: rowmill.Store, num_rows: int | None = 6) -> None:
        super().__init__()
        table = store.table("words", dim=2, optimizer=SGD(lr=1.0), num_rows=num_rows)
        self.words = EmbeddingBag(num_rows, 2, mode="sum", table=table)
        self.top = nn.Linear(2, 1)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(6, 2, mode="sum")
        self.top = nn.Linear(2, 1)


def test_state_dicts_can_be_exchanged_with_torch(store: rowmill.Store) -> None:
    plain, stored = Plain(), Model(store)
    assert list(stored.state_dict()) != []
    assert set(stored.state_dict()) == set(plain.state_dict())
    stored.load_state_dict(plain.state_dict())
    assert (stored.words.weight == plain.words.weight).all()
    other = Plain()
    other.load_state_dict(stored.state_dict())
    assert (other.words.weight == plain.words.weight).all()


def test_a_state_dict_of_another_shape_is_refused(store: rowmill.Store) -> None:
    stored, state = Model(store), Plain().state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*words.weight"):
        stored.load_state_dict({k: v for k, v in state.items() if k != "words.weight"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*words.bias"):
        stored.load_state_dict({**state, "words.bias": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"words.weight: .* must be \[6, 2\], got \[7, 2\]"):
        stored.load_state_dict({**state, "words.weight": torch.zeros(7, 2)})


def test_a_padding_row_must_be_zero_to_be_loaded(store: rowmill.Store) -> None:
    table = store.table("t", dim=2, optimizer=SGD(lr=1.0), num_rows=3)
    stored = Embedding(3, 2, padding_idx=1, table=table)
    stored.load_state_dict(nn.Embedding(3, 2, padding_idx=1).state_dict())
    with pytest.raises(RuntimeError, match="the row of padding_idx 1 is not 0"):
        stored.load_state_dict({"weight": torch.ones(3, 2)})


def test_large_tables_stay_out_of_state_dicts(store: rowmill.Store) -> None:
    model = Model(store)
    model.words.state_dict_bytes_max = 47
    with pytest.raises(InvalidInput, match=r"words.weight: .* 48 B, more than .* 47 B.*store'"):
        model.state_dict()
    with pytest.raises(InvalidInput, match="dense_state_dict"):
        _ = model.words.weight
    assert set(dense_state_dict(model)) == {"top.weight", "top.bias"}


def test_hashed_tables_have_no_weight_matrix(store: rowmill.Store) -> None:
    model = Model(store, num_rows=None)
    with pytest.raises(InvalidInput, match=r"any 64-bit id.*checkpoint"):
        model.state_dict()


def test_dense_parameters_can_be_saved_without_rows(store: rowmill.Store) -> None:
    model, top = Model(store, num_rows=None), nn.Linear(2, 1)
    load_dense_state_dict(model, {f"top.{k}": v for k, v in top.state_dict().items()})
    assert (model.top.weight == top.weight).all()
    with pytest.raises(
        InvalidInput, match=r"missing \['top.bias', 'top.weight'\], unexpected \['x'\]"
    ):
        load_dense_state_dict(model, {"x": torch.zeros(1)})
    assert tables_of(model) == [store.open_table("words")]
