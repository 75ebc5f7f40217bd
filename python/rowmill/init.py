"""Initial weights of new rows: a pure function of (store seed, table, id), independent of the order of creation."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Constant", "Initializer", "Normal", "TruncatedNormal", "Uniform", "Zeros"]


@dataclass(frozen=True)
class Zeros:
    """All weights 0."""


@dataclass(frozen=True)
class Constant:
    """All weights `value`."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Weights drawn uniformly from [low, high)."""

    low: float
    high: float


@dataclass(frozen=True)
class Normal:
    """Weights drawn from a normal distribution, as `torch.nn.EmbeddingBag` does by default."""

    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class TruncatedNormal:
    """Weights drawn from a normal distribution truncated to [low, high]."""

    mean: float = 0.0
    std: float = 1.0
    low: float = -2.0
    high: float = 2.0


Initializer = Zeros | Constant | Uniform | Normal | TruncatedNormal
