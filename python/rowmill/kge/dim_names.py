"""What of a knowledge graph embedding depends on its dim, for `rowmill alter`: the rows of both tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.kge import MODELS
from rowmill.kge.task import check_settings
from rowmill.saved.resizing import DimNames, Resizing

if TYPE_CHECKING:
    from collections.abc import Hashable

    from rowmill.config.config import Config
    from rowmill.saved.saved_run import SavedRun


def resizing(saved: SavedRun, config: Config) -> Resizing:
    """How the rows of a run are brought to the dim of these settings."""
    check_settings(config)
    return Resizing(before=_names(saved.config), after=_names(config))


def _names(config: Config) -> DimNames:
    model, dim = MODELS[config.model.kind], config.model.dim
    entity, relation = dim, model.relation_dim(dim)
    return DimNames(
        {
            "entities": _row(entity, complex_rows=model.complex_rows),
            # Those of RotatE are angles, one for each complex number of an entity.
            "relations": _row(relation, complex_rows=model.complex_rows and relation == entity),
        }
    )


def _row(dim: int, *, complex_rows: bool) -> list[Hashable]:
    """Names of the weights of a row: of complex numbers first the real parts."""
    if not complex_rows:
        return list(range(dim))
    return [(part, place) for part in ("real", "imaginary") for place in range(dim // 2)]
