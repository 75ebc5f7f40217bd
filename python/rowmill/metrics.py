"""AUC, logloss and normalized entropy of predicted clicks."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import BinaryAUROC


class ClickMetrics:
    """Metrics over all rows seen since the start or the last `reset`.

    AUC is exact: it keeps every logit, 12 bytes a row. Normalized entropy is logloss over the entropy of the rows'
    own click rate (He et al. 2014, Practical lessons from predicting clicks on ads): 1 is as good as knowing the
    rate alone. A figure that the rows do not determine (no click, or nothing but clicks) is None.

    Examples:
        >>> metrics = ClickMetrics()
        >>> metrics.update(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 0.0, 0.0]))
        >>> metrics.compute()["auc"]
        1.0
    """

    def __init__(self) -> None:
        self._auc = BinaryAUROC()
        self._loss = MeanMetric().set_dtype(torch.float64)
        self._rate = MeanMetric().set_dtype(torch.float64)
        self.rows = 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add rows: logits and labels `[n]` float32."""
        logits = logits.detach()
        self.rows += len(labels)
        # Probabilities would tie where logits still differ; ranks are all that AUC looks at.
        self._auc.update(logits.double().sigmoid(), labels.int())
        loss = binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="sum")
        self._loss.update(loss / len(labels), weight=len(labels))
        self._rate.update(labels.double().mean(), weight=len(labels))

    def compute(self) -> dict[str, float | None]:
        """`{"auc":, "logloss":, "ne":}`."""
        if self.rows == 0:
            return {"auc": None, "logloss": None, "ne": None}
        rate, logloss = _value(self._rate), _value(self._loss)
        if not 0.0 < rate < 1.0:
            return {"auc": None, "logloss": logloss, "ne": None}
        share = torch.tensor(rate, dtype=torch.float64)
        entropy = float(-(share * share.log() + (1 - share) * (1 - share).log()))
        return {
            "auc": _value(self._auc),
            "logloss": logloss,
            "ne": logloss / entropy,
        }

    def reset(self) -> None:
        """Forget all rows."""
        self.rows = 0
        for metric in (self._auc, self._loss, self._rate):
            metric.reset()


def _value(metric: Metric) -> float:
    return float(cast("Any", metric).compute())
