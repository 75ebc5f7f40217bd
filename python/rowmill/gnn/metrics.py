"""Loss and accuracy of node classification, and the AUC if there are two classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn.functional import cross_entropy

from rowmill.ctr.metrics import ClickMetrics

if TYPE_CHECKING:
    from torch import Tensor

    from rowmill.distributed import Ranks


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
        return _figures(*self.sums(), self._clicks)

    def sums(self) -> tuple[int, int, float]:
        """Number of nodes, of those with the right class, and the sum of the losses."""
        return self.rows, self._right, self._loss

    def reset(self) -> None:
        """Forget all nodes."""
        self.rows, self._right, self._loss, self._clicks = 0, 0, 0.0, None


class NodeMetricsOfAllRanks:
    """The same metrics over the nodes of all ranks. `compute` is a collective: sums are sent, for the AUC also scores.

    Attributes:
        rows: Number of nodes on all ranks. The caller adds to it; `update` does not.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.reset()

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add nodes of this rank, or none: scores `[n, classes]` float32, labels `[n]` int64."""
        if len(labels) == 0:
            return
        self._mine.update(scores, labels)
        if scores.shape[1] == 2:
            scores = scores.detach().double()
            self._pairs.append((scores[:, 1] - scores[:, 0], labels))

    def compute(self) -> dict[str, float | None]:
        """As `NodeMetrics.compute`."""
        said = self._ranks.gather((self._mine.sums(), self._pairs))
        rows, right, loss = (
            sum(of_ranks) for of_ranks in zip(*(sums for sums, _ in said), strict=True)
        )
        clicks = None
        for pairs in (pair for _, of_rank in said for pair in of_rank):
            clicks = clicks or ClickMetrics()
            clicks.update(*pairs)
        return _figures(rows, right, loss, clicks)

    def reset(self) -> None:
        """Forget all nodes."""
        self.rows = 0
        self._mine = NodeMetrics()
        self._pairs: list[tuple[Tensor, Tensor]] = []


def _figures(
    rows: int, right: int, loss: float, clicks: ClickMetrics | None
) -> dict[str, float | None]:
    if rows == 0:
        return {"loss": None, "accuracy": None}
    auc = {} if clicks is None else {"auc": clicks.compute()["auc"]}
    return {"loss": loss / rows, "accuracy": right / rows, **auc}
