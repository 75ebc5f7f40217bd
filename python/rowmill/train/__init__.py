"""The trainer behind `rowmill train`: everything that is the same for all tasks."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.train.run import TrainingDiverged, train

__all__ = ["TrainingDiverged", "train"]

__getattr__, __dir__ = lazy(__name__, {"run": ("TrainingDiverged", "train")})
