"""Settings of `dlrm.py`, checked before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from benchmarks.dlrm_scaling.shapes import SHAPES, Shape
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BACKENDS = ("gloo", "oneccl", "nccl")
COMMS = ("blocking", "overlap")
PRECISIONS = ("fp32", "bf16", "split-bf16")
PINS = ("off", "apart", "together")
PLACEMENTS = ("rows", "pooled", "whole", "auto")
SWEEPS = ("strong", "weak")
SKEWS = ("zipf", "uniform")

RANKS_MAX = 1024
STEPS_MAX = 100_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run, sent to all of its ranks.

    Attributes:
        config: A name in `SHAPES`.
        scale: Fraction of the shape's rows and batch.
        sweep: `strong` uses the shape's global batch, `weak` its batch per rank.
        batch: Samples per batch instead of the shape's, or None.
        ranks: Number of ranks.
        backend: Backend of torch.distributed.
        comm: See `benchmarks.dlrm_scaling.step`.
        precision: Precision of rows, layers and messages.
        pin: `apart`: communication threads have their own cores. `together`: communication threads share the compute cores,
            which are the same as in `apart`, so that only the sharing differs.
        placement: Placement of all tables; `auto` is planned from the first batches.
        skew: Distribution of ids.
        steps: Number of measured steps.
        warmup: Number of steps before the measured ones.
        threads: Threads of each rank; None: an equal share of the cores.
        memory: Bytes for the store of each rank; None: enough for its rows.
        store: Folder for the stores; None: a temporary one.
        timeout_s: Longest wait for another rank, in seconds.
        seed: Seed of all random numbers.
    """

    config: str
    scale: float = 1.0
    sweep: str = "strong"
    batch: int | None = None
    ranks: int = 1
    backend: str = "gloo"
    comm: str = "overlap"
    precision: str = "fp32"
    pin: str = "off"
    placement: str = "rows"
    skew: str = "zipf"
    steps: int = 20
    warmup: int = 4
    threads: int | None = None
    memory: int | None = None
    store: str | None = None
    timeout_s: float = 60.0
    seed: int = 1

    def __post_init__(self) -> None:
        one_of("--config", self.config, tuple(SHAPES))
        one_of("--sweep", self.sweep, SWEEPS)
        one_of("--backend", self.backend, BACKENDS)
        one_of("--comm", self.comm, COMMS)
        one_of("--precision", self.precision, PRECISIONS)
        one_of("--pin", self.pin, PINS)
        one_of("--placement", self.placement, PLACEMENTS)
        one_of("--ids", self.skew, SKEWS)
        for name, value, least, most in (
            ("--ranks", self.ranks, 1, RANKS_MAX),
            ("--steps", self.steps, 1, STEPS_MAX),
            ("--warmup", self.warmup, 0, STEPS_MAX),
            ("--batch", self.batch, 1, 1 << 24),
            ("--threads", self.threads, 1, RANKS_MAX),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidInput(f"{name} must be in [{least}, {most}], got {value}")
        if not 0 < self.timeout_s <= 86_400:
            raise InvalidInput(f"--timeout must be in [0, 86400] seconds, got {self.timeout_s:g}")
        if self.samples < self.ranks:
            raise InvalidInput(
                f"{self.ranks} ranks cannot share a batch of {self.samples}: raise --scale or --batch, or lower --ranks"
            )

    @property
    def shape(self) -> Shape:
        """The shape of the model, scaled."""
        return SHAPES[self.config].scaled(self.scale)

    @property
    def samples(self) -> int:
        """Samples per step over all ranks."""
        if self.sweep == "weak":
            return (self.batch or self.shape.local_batch) * self.ranks
        return self.batch or self.shape.global_batch

    def part(self, rank: int) -> slice:
        """The samples of a rank."""
        return slice(self.samples * rank // self.ranks, self.samples * (rank + 1) // self.ranks)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The runs of one command: all combinations of these values."""

    ranks: Sequence[int]
    backend: Sequence[str]
    comm: Sequence[str]
    precision: Sequence[str]
    pin: Sequence[str]

    def runs(self, base: Settings) -> list[Settings]:
        """The settings of each run. With `store`, each run has its own folder in it."""
        return [
            replace(
                base,
                store=None if base.store is None else f"{base.store}/run{number}",
                ranks=ranks,
                backend=backend,
                comm=comm,
                precision=precision,
                pin=pin,
            )
            for number, (ranks, backend, precision, pin, comm) in enumerate(
                product(self.ranks, self.backend, self.precision, self.pin, self.comm)
            )
        ]


def one_of(flag: str, value: str, allowed: Iterable[str]) -> None:
    """Raise `InvalidInput` unless the value is allowed."""
    if value not in allowed:
        raise InvalidInput(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
