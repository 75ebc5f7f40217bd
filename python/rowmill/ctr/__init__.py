"""The task `ctr`: click models, click logs and metrics."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.ctr import data, models
    from rowmill.ctr.loaded_clicks import LoadedClicks
    from rowmill.ctr.metrics import ClickMetrics, ListMetrics

__all__ = ["ClickMetrics", "ListMetrics", "LoadedClicks", "data", "models"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "loaded_clicks": ("LoadedClicks",),
        "metrics": ("ClickMetrics", "ListMetrics"),
    },
    modules=("data", "models"),
)
