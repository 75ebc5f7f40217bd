"""Loss and accuracy of node classification, and the AUC if there are two classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import cross_entropy

from rowmill.ctr.metrics import ClickMetrics

if TYPE_CHECKING:
    from torch import Tensor


class NodeMetrics:
    """Metrics of class scores over all nodes since construction or the last `reset`.

    `accuracy` is the fraction of nodes whose own class has the highest score, and `loss` is the mean cross-entropy. With
    two classes there is also `auc`, computed from the score of class 1 minus the score of class 0; it is None if all nodes
    have the same class.

    Examples:
        >>> import torch
        >>> metrics = NodeMetrics()
        >>> metrics.update(torch.tensor([[0.0, 2.0], [1.0, -1.0]]), torch.tensor([1, 1]))
        >>> metrics.compute()["accuracy"]
        0.5
    """

    def __init__(self) -> None:
        self.rows = 0
        self._right = 0
        self._loss = 0.0
        self._clicks: ClickMetrics | None = None

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add nodes: scores `[n, classes]` float32, labels `[n]` int64."""
        scores = scores.detach().double()
        self.rows += len(labels)
        self._right += int((scores.argmax(1) == labels).sum())
        self._loss += float(cross_entropy(scores, labels, reduction="sum"))
        if scores.shape[1] == 2:
            self._clicks = self._clicks or ClickMetrics()
            self._clicks.update(scores[:, 1] - scores[:, 0], labels)

    def compute(self) -> dict[str, float | None]:
        """`{"loss", "accuracy"}`, with two classes also `"auc"`; the values are None without nodes."""
        if self.rows == 0:
            return {"loss": None, "accuracy": None}
        auc = {} if self._clicks is None else {"auc": self._clicks.compute()["auc"]}
        return {"loss": self._loss / self.rows, "accuracy": self._right / self.rows, **auc}

    def reset(self) -> None:
        """Forget all nodes."""
        self.rows, self._right, self._loss, self._clicks = 0, 0, 0.0, None
