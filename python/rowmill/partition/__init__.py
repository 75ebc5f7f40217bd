"""Export of a model as two halves: lookups and what they need on a CPU, matrix products where a GPU may be."""

from typing import TYPE_CHECKING

from rowmill._lazy import lazy

if TYPE_CHECKING:
    from rowmill.partition.bundle import Bundle

__all__ = ["Bundle"]

__getattr__, __dir__ = lazy(__name__, {"bundle": ("Bundle",)})
