"""Metrics of click models: AUC, logloss, normalized entropy, HR@10 and NDCG@10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from rowmill._extras import extra
from rowmill.errors import InvalidInput

with extra("train"):
    from torchmetrics import MeanMetric, Metric
    from torchmetrics.classification import BinaryAUROC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ClickMetrics:
    """Metrics over all rows seen since the start or the last `reset`.

    AUC is exact: it keeps every logit, 12 bytes per row. Normalized entropy is logloss divided by the entropy of the
    mean click rate (He et al. 2014, Practical lessons from predicting clicks on ads): 1 is no better than the mean rate.
    A metric that is undefined for the rows (no click, or only clicks) is None.

    Examples:
        >>> metrics = ClickMetrics()
        >>> metrics.update(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 0.0, 0.0]))
        >>> metrics.compute()["auc"]
        1.0
    """

    def __init__(self) -> None:
        # Metrics of this process only, even if torch.distributed is initialized.
        self._auc = BinaryAUROC(sync_on_compute=False)
        self._loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64)
        self._rate = MeanMetric(sync_on_compute=False).set_dtype(torch.float64)
        self.rows = 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add rows: logits and labels `[n]` float32."""
        logits = logits.detach()
        self.rows += len(labels)
        # float32 probabilities may be equal for different logits. AUC uses only their order, so compute it in float64.
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


class ListMetrics:
    """HR@10 and NDCG@10 of lists of candidates with one click each.

    Every `candidates` rows are one list. `hr_at_10` is the share of lists whose click ranks among the first ten;
    `ndcg_at_10` weights it by `1 / log2(1 + rank)`. Of candidates with equal logits, half count as ranked higher.

    Examples:
        >>> metrics = ListMetrics(3)
        >>> metrics.update(torch.tensor([0.5, 2.0, -1.0]), torch.tensor([1.0, 0.0, 0.0]))
        >>> metrics.compute()["hr_at_10"]
        1.0
    """

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._rest = (torch.empty(0), torch.empty(0))
        self._ranks: list[Tensor] = []

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add rows: logits and labels `[n]` float32; a list may span several calls."""
        logits = torch.cat([self._rest[0], logits.detach()])
        labels = torch.cat([self._rest[1], labels])
        whole = len(logits) - len(logits) % self._candidates
        self._rest = (logits[whole:], labels[whole:])
        logits_LC, labels_LC = (
            rows[:whole].view(-1, self._candidates) for rows in (logits, labels)
        )
        if bool((labels_LC.sum(1) != 1).any()):
            raise InvalidInput(
                f"each list of {self._candidates} candidates must have exactly one click: make the log again"
            )
        clicked_L1 = logits_LC[labels_LC == 1].unsqueeze(1)
        # The sum of equal logits includes the click itself.
        above = (logits_LC > clicked_L1).sum(1) + ((logits_LC == clicked_L1).sum(1) - 1) / 2
        self._ranks.append(1 + above)

    def compute(self) -> dict[str, float | None]:
        """`{"hr_at_10":, "ndcg_at_10":}`."""
        if len(self._rest[0]):
            raise InvalidInput(
                f"the test rows end inside a list of {self._candidates} candidates: make the log again"
            )
        ranks = torch.cat([torch.empty(0), *self._ranks]).double()
        if len(ranks) == 0:
            return {"hr_at_10": None, "ndcg_at_10": None}
        hits = ranks <= 10
        gains = (1 / (1 + ranks).log2()).where(hits, 0.0)
        return {"hr_at_10": float(hits.double().mean()), "ndcg_at_10": float(gains.mean())}


class TestMetrics:
    """The metrics of a test: all metrics of the first label, the AUC of each further label, and metrics of lists of candidates.

    Args:
        tasks: Names of further labels, whose AUC is `auc_<name>`.
        candidates: Rows per list of candidates; None: the rows are not in lists.
        extend: Extends metrics of this process's rows to the rows of all ranks; None: this process has all rows.
    """

    __test__ = False  # pytest would collect it by its name.

    def __init__(
        self,
        tasks: Sequence[str],
        candidates: int | None,
        extend: Callable[[Any], Any] | None = None,
    ) -> None:
        extend = extend or (lambda metrics: metrics)
        self._names = tasks
        self._labels: list[ClickMetrics] = [extend(ClickMetrics()) for _ in range(1 + len(tasks))]
        self._lists: ListMetrics | None = extend(ListMetrics(candidates)) if candidates else None

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add rows: logits and labels `[n]`, or `[n, T]` for several labels."""
        for label, metrics in enumerate(self._labels):
            metrics.update(*of_label(label, logits, labels))
        if self._lists is not None:
            self._lists.update(*of_label(0, logits, labels))

    def compute(self) -> dict[str, float | None]:
        """All metrics by name."""
        first, *others = self._labels
        return {
            **first.compute(),
            **{
                f"auc_{name}": other.compute()["auc"]
                for name, other in zip(self._names, others, strict=True)
            },
            **({} if self._lists is None else self._lists.compute()),
        }


def of_label(label: int, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and labels `[n]` of one of several labels."""
    return (logits, labels) if labels.dim() == 1 else (logits[:, label], labels[:, label])


def _value(metric: Metric) -> float:
    return float(cast("Any", metric).compute())
