"""Optimizers: what updates the rows of a table, and `RowOptimizer` to update them when you say so.

`SplitSGD` and `SplitAdagrad` are for the dense half.
"""

from rowmill.optim.specs import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    MomentumSGD,
    OptimizerSpec,
    RowOptimizer,
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
