"""The task `ctr`: click models, click logs and metrics."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.ctr import data, models
    from rowmill.ctr.metrics import ClickMetrics, ListMetrics

__all__ = ["ClickMetrics", "ListMetrics", "data", "models"]

__getattr__, __dir__ = lazy(
    __name__,
    {"metrics": ("ClickMetrics", "ListMetrics")},
    modules=("data", "models"),
)
