"""Training a click model from a log of clicks: `train(config)`, or `rowmill train`."""

from rowmill.train.run import train

__all__ = ["train"]
