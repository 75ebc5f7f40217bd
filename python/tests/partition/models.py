"""Small models for the kinds of graphs that tests of the partition use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import rowmill
from rowmill.ctr.models import (
    BST,
    DIEN,
    DIN,
    DLRM,
    FFNN,
    NCF,
    DCNv2,
    FeatureBags,
    Histories,
    MultiTaskWideDeep,
    TwoTower,
    WideDeep,
)
from rowmill.nn import Feature, StackedBags

if TYPE_CHECKING:
    from collections.abc import Callable

F, D, N, P, IDS = 3, 8, 2, 4, 10
HISTORIES = Histories(features=F, targets=(1, 2), places=P)
COLUMNS = {"single": [0, 1, 2], "pair": [0, 1], "history": [0, 1, 2, *[1] * P, *[2] * P]}
_WIDTHS = {"features": F, "dim": D, "dense_features": N}
_OVER = {"histories": HISTORIES, "dim": D, "dense_features": N}

CLICK_MODELS: dict[str, tuple[str, Callable[[nn.Module], nn.Module]]] = {
    "dlrm": ("single", lambda bags: DLRM(bags, **_WIDTHS, bottom=[8], top=[8])),
    "dcn_v2": ("single", lambda bags: DCNv2(bags, **_WIDTHS, cross_layers=2, rank=3, deep=[8])),
    "ffnn": ("single", lambda bags: FFNN(bags, **_WIDTHS, hidden=[8])),
    "wide_deep": ("single", lambda bags: WideDeep(bags, **_WIDTHS, hidden=[8])),
    "mt_wide_deep": ("single", lambda bags: MultiTaskWideDeep(bags, **_WIDTHS, tasks=2)),
    "ncf": ("pair", lambda bags: NCF(bags, dim=D // 2, dense_features=N, hidden=[8])),
    "two_tower": (
        "history",
        lambda bags: TwoTower(bags, **_WIDTHS, items=[1], histories=HISTORIES),
    ),
    "din": ("history", lambda bags: DIN(bags, **_OVER)),
    "dien": ("history", lambda bags: DIEN(bags, **_OVER)),
    "bst": ("history", lambda bags: BST(bags, **_OVER, heads=2)),
}
"""The ten click models of `rowmill train` by name, with their id columns."""


@dataclass(frozen=True)
class Model:
    """A module, and a function that makes its inputs for any number of rows."""

    module: nn.Module
    call: Callable[[int], tuple[Any, ...]]


def stacked(store: rowmill.Store, columns: list[int]) -> StackedBags:
    """Rows in a store, as in a run of `rowmill train`, with values that differ from their initial values."""
    tables = [
        store.table(f"C{number}", dim=D, optimizer=rowmill.optim.SGD(lr=0.1))
        for number in range(max(columns) + 1)
    ]
    torch.manual_seed(1)
    for table in tables:
        ids = torch.arange(IDS)
        table.put(ids, torch.randn(IDS, D))
    return StackedBags(
        Feature(f"{column} {number}", tables[number]) for column, number in enumerate(columns)
    )


def bags(columns: list[int]) -> FeatureBags:
    tables = [nn.EmbeddingBag(IDS, D, mode="sum") for _ in set(columns)]
    return FeatureBags(tables, bag_of=columns)


def click_model(name: str, embeddings: Callable[[list[int]], nn.Module]) -> Model:
    layout, build = CLICK_MODELS[name]
    columns = COLUMNS[layout]
    torch.manual_seed(1)

    def call(rows: int) -> tuple[Tensor, ...]:
        inputs = torch.rand(rows, N), torch.randint(0, IDS, (rows, len(columns)))
        return (*inputs, torch.randint(0, P + 1, (rows,))) if layout == "history" else inputs

    return Model(build(embeddings(columns)), call)


class Transformer(nn.Module):
    """A transformer over the embeddings of a sequence, with positions as constants."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(IDS, D, padding_idx=0)
        self.positions = nn.Embedding(6, D)
        self.block = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(D, 1)

    def forward(self, ids: Tensor) -> Tensor:
        items = self.items(ids) + self.positions(torch.arange(6))
        return self.out(self.block(items).mean(1)).squeeze(1)


def transformer() -> Model:
    return Model(Transformer(), lambda rows: (torch.randint(0, IDS, (rows, 6)),))
