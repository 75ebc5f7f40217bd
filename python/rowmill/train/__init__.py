"""The trainer behind `rowmill train`."""

from rowmill.train.run import TrainingDiverged, train
from rowmill.train.splits import train_splits

__all__ = ["TrainingDiverged", "train", "train_splits"]
