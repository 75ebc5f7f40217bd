"""The version that a checkpoint of a run becomes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rowmill.config.setting import ConfigError
from rowmill.store.versions import NewVersion

if TYPE_CHECKING:
    from rowmill.config.sections import CheckpointConfig
    from rowmill.train.state import RunState

_LOWER_IS_BETTER = ("loss", "logloss", "ne")
_VALID = "valid_"
"""Begin of the names of metrics on the validation split, which only some points of the curves have."""


def new_version(config: CheckpointConfig, state: RunState) -> NewVersion | None:
    """The version for a checkpoint at the current step; None without `checkpoint.versions`.

    Its metric is that of the last point of the curves if the point is of this step, else None.

    Raises:
        ConfigError: No point of the curves has the metric.
    """
    if config.versions is None:
        return None
    metric = None
    if config.best is not None:
        names = {name for point in state.curve for name in point}
        if state.curve and config.best not in names and not config.best.startswith(_VALID):
            raise ConfigError(
                f"checkpoint.best must be a metric of the curves, one of {', '.join(sorted(names))}, got {config.best!r}"
            )
        values = [point.get(config.best) for point in state.curve if point["step"] == state.step]
        finite = [value for value in values if value is not None and math.isfinite(value)]
        metric = finite[-1] if finite else None
    lower = config.best is not None and lower_is_better(config.best)
    return NewVersion(
        name=f"step-{state.step}",
        keep=config.versions,
        step=state.step,
        metric=metric,
        best=None if config.best is None else "lowest" if lower else "highest",
    )


def lower_is_better(metric: str) -> bool:
    """Whether lower values of a metric of the curves are better."""
    return metric.removeprefix(_VALID) in _LOWER_IS_BETTER
