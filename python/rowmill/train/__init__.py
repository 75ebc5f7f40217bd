"""The trainer behind `rowmill train`: what all tasks share."""

from rowmill.train.run import TrainingDiverged, train

__all__ = ["TrainingDiverged", "train"]
