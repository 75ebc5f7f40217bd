"""The dense weights of a click model that depend on the dim of its rows, for `rowmill alter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from rowmill.config.setting import ConfigError
from rowmill.ctr.click_model import build_model, schema_for
from rowmill.ctr.data.schema import schema_from
from rowmill.ctr.input_names import input_names
from rowmill.saved.resizing import DimNames, Resizing
from rowmill.train.state import dense_parameters, dense_state

if TYPE_CHECKING:
    from collections.abc import Hashable

    from rowmill.config.config import Config
    from rowmill.config.sections import ModelConfig
    from rowmill.ctr.data import Schema
    from rowmill.saved.resizing import Names
    from rowmill.saved.saved_run import SavedRun


def resizing(saved: SavedRun, config: Config) -> Resizing:
    """How the weights of a run are brought to the dim of these settings; raises `ConfigError` for a model that cannot."""
    schema = schema_from(saved.file("schema"))
    schema_for(config.model, schema)
    if config.model.kind == "bst":
        raise ConfigError(
            f"model.dim cannot be altered from {saved.config.model.dim} to {config.model.dim} for model.kind = 'bst': its "
            "attention heads and layer norms are over all weights of an item, so they have no meaning for vectors of another "
            "width; train a new run with --dim"
        )
    # The weights of a run do not depend on the random stream of this process.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        model = build_model(config.model, nn.Identity(), schema)
    kept = {id(parameter) for parameter in dense_parameters(model)}
    return Resizing(
        before=dim_names(saved.config.model, schema),
        after=dim_names(config.model, schema),
        fresh=dense_state(model),
        parameters=tuple(name for name, value in model.named_parameters() if id(value) in kept),
    )


def dim_names(config: ModelConfig, schema: Schema) -> DimNames:
    """The names of the weights of rows, and of the entries of dense weights, by what each stands for."""
    row: list[Hashable] = list(range(config.dim))
    if config.kind == "ncf":
        # A row holds the vector of the product, then that of the MLP.
        row = [(half, weight) for half in ("product", "mlp") for weight in range(config.dim // 2)]
    # The tables of dropped columns stay, and their columns may be added again.
    rows = dict.fromkeys([*schema.ids, *dict(schema.dropped)], row)
    return DimNames(rows, {**input_names(config, schema), **_more(config, schema)})


def _more(config: ModelConfig, schema: Schema) -> dict[str, tuple[Names, ...]]:
    """The entries of dense weights that depend on the dim, but not on the columns of the log."""
    if config.kind == "dlrm":
        out = list(range(config.dim))
        last = f"bottom.{2 * len(config.bottom)}"
        # Without hidden layers, the last layer is the first, too.
        inputs = None if config.bottom else [("numeric", name) for name in schema.dense]
        return {f"{last}.weight": (out, inputs), f"{last}.bias": (out,)}
    if config.kind == "ncf" and config.deep:
        product = [("product", weight) for weight in range(config.dim // 2)]
        deep = [("deep", output) for output in range(config.deep[-1])]
        return {"join.0.weight": (None, [*product, *deep])}
    item = [(name, weight) for name in dict(schema.histories) for weight in range(config.dim)]
    if config.kind == "din":
        pairs = [(part, label) for part in range(4) for label in item]
        return {"attention.layers.0.weight": (None, pairs)}
    if config.kind != "dien":
        return {}
    gates = [(gate, label) for gate in range(3) for label in item]
    layers = ("extract.{}_ih_l0", "extract.{}_hh_l0", "evolve.inward.{}", "evolve.recurrent.{}")
    found: dict[str, tuple[Names, ...]] = {"match.weight": (item, item)}
    for layer in layers:
        found[layer.format("weight")] = (gates, item)
        found[layer.format("bias")] = (gates,)
    return found
