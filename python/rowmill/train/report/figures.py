"""What the figures of a run are called and how they are written: on the terminal, and on the page of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Figure:
    """A figure between 0 and 1, or a loss: four digits tell runs apart."""

    key: str
    name: str
    note: str = ""
    optional: bool = False
    """Whether it is left out where it was not computed."""

    def of(self, figures: Mapping[str, float | None]) -> str:
        """As text; a dash for what is not known."""
        value = figures.get(self.key)
        return "-" if value is None else f"{value:.4f}"


@dataclass(frozen=True)
class Figures:
    """The figures of a task.

    Attributes:
        unit: What its data has: `rows per second` counts them.
        test: Of the test part.
        short: Of the points of the curves, on the line that shows how a run goes on.
        charts: Of the points of the curves, on the page, each with the level of the test part where that is known.
    """

    unit: str
    test: tuple[Figure, ...]
    short: tuple[Figure, ...]
    charts: tuple[Figure, ...]

    def tested(self, test: Mapping[str, float | None]) -> list[Figure]:
        """The figures to show of a test part."""
        return [figure for figure in self.test if not figure.optional or figure.key in test]


_FIGURES = {
    "ctr": Figures(
        unit="rows",
        test=(
            Figure("hr_at_10", "test HR@10", "the clicked one among its candidates", True),
            Figure("ndcg_at_10", "test NDCG@10", "the clicked one among its candidates", True),
            Figure("auc", "test AUC"),
            Figure("logloss", "test logloss"),
            Figure("ne", "normalized entropy", "1 is knowing the click rate alone"),
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
            Figure("valid_mrr", "MRR of the valid part"),
        ),
    ),
    "gnn": Figures(
        unit="nodes",
        test=(
            Figure("auc", "test AUC", "of two classes", True),
            Figure("accuracy", "test accuracy", "share of nodes told right"),
        ),
        short=(Figure("loss", "loss"), Figure("valid_accuracy", "valid accuracy")),
        charts=(
            Figure("loss", "Loss, before training on each batch"),
            Figure("valid_accuracy", "Accuracy of the valid part"),
        ),
    ),
}


def figures_of(report_or_config: Mapping[str, Any]) -> Figures:
    """The figures of the task of a report, or of a config as a dictionary."""
    config = report_or_config.get("config", report_or_config)
    return _FIGURES[config["train"].get("task", "ctr")]
