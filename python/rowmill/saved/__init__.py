"""Trained runs, read without training: `load`, scores and metrics of other data, and vectors as files."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.saved.loaded_run import LoadedRun, load
    from rowmill.saved.metrics import evaluate
    from rowmill.saved.scores import predict
    from rowmill.saved.vectors import write_vectors

__all__ = ["LoadedRun", "evaluate", "load", "predict", "write_vectors"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "metrics": ("evaluate",),
        "loaded_run": ("LoadedRun", "load"),
        "scores": ("predict",),
        "vectors": ("write_vectors",),
    },
)
