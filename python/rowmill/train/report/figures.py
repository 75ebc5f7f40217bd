"""Names and formats of the metrics of each task, for the console and the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Figure:
    """A metric between 0 and 1, or a loss, shown with four decimal digits."""

    key: str
    name: str
    note: str = ""
    optional: bool = False
    """Whether the metric is hidden in runs that do not compute it."""

    def of(self, figures: Mapping[str, float | None]) -> str:
        """The value as text; a dash if it is unknown."""
        value = figures.get(self.key)
        return "-" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class Figures:
    """The metrics of a task.

    Attributes:
        unit: Name of the task's examples, as in `rows per second`.
        test: Metrics of the test.
        short: Metrics of the progress line.
        charts: Curves of the report page, each with the value of the test as a level if it is known.
    """

    unit: str
    test: tuple[Figure, ...]
    short: tuple[Figure, ...]
    charts: tuple[Figure, ...]

    def tested(self, test: Mapping[str, float | None]) -> list[Figure]:
        """The test metrics to show."""
        return [figure for figure in self.test if not figure.optional or figure.key in test]


_FIGURES = {
    "ctr": Figures(
        unit="rows",
        test=(
            Figure("hr_at_10", "test HR@10", "clicked item among its candidates", True),
            Figure("ndcg_at_10", "test NDCG@10", "clicked item among its candidates", True),
            Figure("auc", "test AUC"),
            Figure("logloss", "test logloss"),
            Figure("ne", "normalized entropy", "1: no better than the mean click rate"),
        ),
        short=(Figure("logloss", "loss"), Figure("auc", "auc")),
        charts=(
            Figure("logloss", "Logloss, before training on each batch"),
            Figure("auc", "AUC, before training on each batch"),
        ),
    ),
    "kge": Figures(
        unit="examples",
        test=(
            Figure("mrr", "test MRR", "mean of 1 / rank among all entities, filtered"),
            *(Figure(f"hits@{k}", f"test hits@{k}") for k in (1, 3, 10)),
        ),
        short=(Figure("loss", "loss"), Figure("valid_mrr", "valid MRR")),
        charts=(
            Figure("loss", "Loss, before training on each batch"),
            Figure("valid_mrr", "Validation MRR"),
        ),
    ),
    "gnn": Figures(
        unit="nodes",
        test=(
            Figure("auc", "test AUC", "two classes", True),
            Figure("accuracy", "test accuracy", "share of nodes classified correctly"),
        ),
        short=(Figure("loss", "loss"), Figure("valid_accuracy", "valid accuracy")),
        charts=(
            Figure("loss", "Loss, before training on each batch"),
            Figure("valid_accuracy", "Validation accuracy"),
        ),
    ),
}


def figures_of(report_or_config: Mapping[str, Any]) -> Figures:
    """The metrics for the task of a report, or of a config as a dictionary."""
    config = report_or_config.get("config", report_or_config)
    figures = _FIGURES[config["train"].get("task", "ctr")]
    if not config["data"].get("follow"):
        return figures
    # Rows are not held out: each is predicted before it is trained on.
    online = (replace(of, name=of.name.replace("test ", "online ")) for of in figures.test)
    return replace(figures, test=tuple(online))
