"""Optimizers of rows, `RowOptimizer` for deferred updates, and `SplitSGD` and `SplitAdagrad` for dense bfloat16 weights."""

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
