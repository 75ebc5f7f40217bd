"""Optimizers of rows, `RowOptimizer` for deferred updates, and `SplitSGD` and `SplitAdagrad` for dense bfloat16 weights.

The optimizers of rows describe themselves without torch, which is imported with the others.
"""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.optim.row_optimizer import RowOptimizer
    from rowmill.optim.specs import (
        FTRL,
        SGD,
        Adagrad,
        Adam,
        MomentumSGD,
        OptimizerSpec,
        RowwiseAdagrad,
        RowwiseAdam,
    )
    from rowmill.optim.split import SplitAdagrad, SplitSGD

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "MomentumSGD",
    "OptimizerSpec",
    "RowOptimizer",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "SplitAdagrad",
    "SplitSGD",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "row_optimizer": ("RowOptimizer",),
        "specs": (
            "FTRL",
            "SGD",
            "Adagrad",
            "Adam",
            "MomentumSGD",
            "OptimizerSpec",
            "RowwiseAdagrad",
            "RowwiseAdam",
        ),
        "split": ("SplitAdagrad", "SplitSGD"),
    },
)
