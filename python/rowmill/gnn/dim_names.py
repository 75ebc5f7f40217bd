"""What of a graph neural network depends on the dim of its embeddings, for `rowmill alter`: its first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.config.setting import ConfigError
from rowmill.saved.resizing import DimNames, Resizing

if TYPE_CHECKING:
    from rowmill.config.config import Config
    from rowmill.saved.saved_run import SavedRun

_FIRST = {
    "graphsage": ("layers.0.own.weight", "layers.0.neighbours.weight"),
    "gat": ("layers.0.linear.weight",),
}


def resizing(saved: SavedRun, config: Config) -> Resizing:
    """How the weights of a run are brought to the dim of these settings."""
    old, new, hidden = saved.config.model.dim, config.model.dim, config.gnn.hidden
    if config.gnn.residual and (old == hidden) != (new == hidden):
        raise ConfigError(
            f"model.dim cannot be altered from {old} to {new} with gnn.residual and gnn.hidden = {hidden}: the first layer has "
            "a residual connection only where both are equal; choose another --dim"
        )
    return Resizing(
        before=_names(config, old),
        after=_names(config, new),
        parameters=tuple(name for name in saved.weights if name.startswith("network.")),
    )


def _names(config: Config, dim: int) -> DimNames:
    row = list(range(dim))
    names = _FIRST[config.model.kind]
    return DimNames(
        {"nodes": row},
        {f"{copy}.{name}": (None, row) for copy in ("network", "best") for name in names},
    )
