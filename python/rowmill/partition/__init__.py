"""Export of a model as two halves: lookups and what they need on a CPU, matrix products where a GPU may be."""

from rowmill.partition.bundle import Bundle
from rowmill.partition.export import export

__all__ = ["Bundle", "export"]
