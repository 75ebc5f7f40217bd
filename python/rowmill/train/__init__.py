"""The trainer behind `rowmill train`: everything that is the same for all tasks."""

from rowmill.train.run import TrainingDiverged, train

__all__ = ["TrainingDiverged", "train"]
