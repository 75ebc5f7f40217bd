"""Choosing and building the click model of the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from rowmill.config.setting import ConfigError
from rowmill.ctr.models import (
    BST,
    DIEN,
    DIN,
    DLRM,
    FFNN,
    NCF,
    DCNv2,
    Histories,
    MultiTaskWideDeep,
    TwoTower,
    WideDeep,
)
from rowmill.kge import MODELS

if TYPE_CHECKING:
    from torch import nn

    from rowmill.config.sections import ModelConfig
    from rowmill.ctr.data import Schema

ClickModel = DLRM | DCNv2 | FFNN | WideDeep | MultiTaskWideDeep | NCF | TwoTower | DIN | DIEN | BST

_OVER_HISTORIES = ("din", "dien", "bst")


def schema_for(config: ModelConfig, schema: Schema) -> Schema:
    """The columns of a log that the model uses; raises `ConfigError` if the log lacks one that it needs."""
    kind = config.kind
    said = f"model.kind = {kind!r}"
    if kind in MODELS:
        raise not_of_clicks(config)
    if kind in _OVER_HISTORIES and not schema.histories:
        raise ConfigError(
            f"{said} needs a history, but the log has none: name its column under [histories] in a schema file, make "
            "a log with `rowmill data sequences`, or use another --model"
        )
    if kind == "two_tower" and not 0 < len(schema.item_ids) < len(schema.ids):
        raise ConfigError(
            f"{said} needs id columns of items and of users: list the columns of items under item_ids in a schema file "
            f"(now {list(schema.item_ids)} of {list(schema.ids)}), or use another --model"
        )
    if kind == "ncf" and len(schema.ids) != 2:
        raise ConfigError(
            f"{said} takes 2 id columns, user and item, but the log has {len(schema.ids)}: list two under ids in a "
            "schema file, or use another --model"
        )
    if kind == "mt_wide_deep" and not schema.tasks:
        raise ConfigError(
            f"{said} needs at least 2 labels, but the log has 1: list further labels under tasks in a schema file, or "
            "use --model wide_deep"
        )
    if kind == "dlrm" and not schema.dense:
        raise ConfigError(
            f"{said} needs numeric columns, but the log has none: list some under dense in a schema file, or use "
            "another --model"
        )
    least, even = {"ncf": (2, 2), "wide_deep": (2, 1), "mt_wide_deep": (2, 1)}.get(kind, (1, 1))
    if config.dim < least or config.dim % even:
        raise ConfigError(
            f"model.dim = {config.dim}, but a row of {kind} holds "
            + (
                "two vectors of equal dim"
                if kind == "ncf"
                else "one weight of the wide half and a vector"
            )
            + f": use --dim {max(least, config.dim + config.dim % even)}"
        )
    width = len(schema.histories) * config.dim
    if kind == "bst" and width % config.heads:
        raise ConfigError(
            f"model.heads must divide the width of an item vector, {width}, got {config.heads}"
        )
    takes_histories = kind in (*_OVER_HISTORIES, "two_tower")
    return replace(
        schema,
        tasks=schema.tasks if kind == "mt_wide_deep" else (),
        histories=schema.histories if takes_histories else (),
    )


def not_of_clicks(config: ModelConfig) -> ConfigError:
    """The error for a model of another task."""
    return ConfigError(
        f"model.kind = {config.kind!r} is not a click model: use another --model, or --task kge"
    )


def build_model(config: ModelConfig, embeddings: nn.Module, schema: Schema) -> ClickModel:
    """The model of the settings, for the columns that `schema_for` returned."""
    features, dense, dim = len(schema.ids), len(schema.dense), config.dim
    single: _Single = {"features": features, "dim": dim, "dense_features": dense}
    gated = [schema.ids.index(name) for name in schema.gated]
    histories = None
    if schema.histories:
        histories = Histories(features=features, targets=schema.targets, places=schema.places)
    match config.kind:
        case "dlrm":
            return DLRM(embeddings, **single, bottom=config.bottom, top=config.top)
        case "dcn_v2":
            crosses, rank = config.cross_layers, config.rank
            return DCNv2(embeddings, **single, cross_layers=crosses, rank=rank, deep=config.deep)
        case "ffnn":
            return FFNN(embeddings, **single, hidden=config.deep)
        case "wide_deep":
            return WideDeep(embeddings, **single, hidden=config.deep, gated=gated)
        case "mt_wide_deep":
            tasks, (shared, tower) = len(schema.labels), (config.deep[:1], config.deep[1:])
            return MultiTaskWideDeep(
                embeddings, **single, tasks=tasks, shared=shared, tower=tower, gated=gated
            )
        case "ncf":
            return NCF(embeddings, dim=dim // 2, dense_features=dense, hidden=config.deep)
        case "two_tower":
            items = [schema.ids.index(name) for name in schema.item_ids]
            deep = config.deep
            return TwoTower(embeddings, **single, items=items, histories=histories, tower=deep)
        case "din" | "dien" | "bst":
            assert histories is not None, "a schema for this model has a history"
            over: _Over = {"histories": histories, "dim": dim, "dense_features": dense}
            if config.kind == "din":
                return DIN(embeddings, **over, attention=config.attention, hidden=config.deep)
            if config.kind == "dien":
                return DIEN(embeddings, **over, hidden=config.deep)
            return BST(embeddings, **over, heads=config.heads, hidden=config.deep)
        case _:
            raise not_of_clicks(config)


class _Single(TypedDict):
    features: int
    dim: int
    dense_features: int


class _Over(TypedDict):
    histories: Histories
    dim: int
    dense_features: int
