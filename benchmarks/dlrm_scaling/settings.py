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
SWEEPS = ("strong", "weak")
SKEWS = ("zipf", "uniform")

RANKS_MAX = 1024
STEPS_MAX = 100_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run: what all of its ranks are told.

    Attributes:
        config: A name of `SHAPES`.
        scale: Share of rows and batch.
        sweep: Which of the shape's batches this run takes: `strong`, the one of all ranks; `weak`, the one of each.
        batch: Samples in its place, or None.
        ranks: How many.
        backend: Of torch.distributed.
        comm: See `benchmarks.dlrm_scaling.step`.
        precision: Of rows, layers and messages.
        pin: `apart`: communication threads on cores of their own. `together`: on the cores of work, which are those that
            `apart` leaves to it, so that the two differ in nothing but who is in whose way.
        skew: How ids are drawn.
        steps: Measured.
        warmup: Steps before those.
        threads: Of each rank, or None for its share of the cores.
        memory: Bytes for the store of each rank, or None for what its rows take.
        store: Folder of the stores; None: a temporary one.
        timeout_s: Longest wait for another rank.
        seed: Of everything random.
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
        one_of("--ids", self.skew, SKEWS)
        for name, value, least, most in (
            ("--ranks", self.ranks, 1, RANKS_MAX),
            ("--steps", self.steps, 1, STEPS_MAX),
            ("--warmup", self.warmup, 0, STEPS_MAX),
            ("--batch", self.batch, 1, 1 << 24),
            ("--threads", self.threads, 1, RANKS_MAX),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidInput(f"{name} must be from {least} to {most}, got {value}")
        if not 0 < self.timeout_s <= 86_400:
            raise InvalidInput(f"--timeout must be from 0 to 86400 seconds, got {self.timeout_s:g}")
        if self.samples < self.ranks:
            raise InvalidInput(
                f"{self.ranks} ranks share a batch of {self.samples}: raise --scale or --batch, or take fewer ranks"
            )

    @property
    def shape(self) -> Shape:
        """Of the model, scaled."""
        return SHAPES[self.config].scaled(self.scale)

    @property
    def samples(self) -> int:
        """Of a step, over all ranks."""
        if self.sweep == "weak":
            return (self.batch or self.shape.local_batch) * self.ranks
        return self.batch or self.shape.global_batch

    def part(self, rank: int) -> slice:
        """The samples of a rank."""
        return slice(self.samples * rank // self.ranks, self.samples * (rank + 1) // self.ranks)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Runs of one command: all combinations of these."""

    ranks: Sequence[int]
    backend: Sequence[str]
    comm: Sequence[str]
    precision: Sequence[str]
    pin: Sequence[str]

    def runs(self, base: Settings) -> list[Settings]:
        """The settings of each run; in a folder for stores each has its own."""
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
    """Raise unless the value is one of those."""
    if value not in allowed:
        raise InvalidInput(f"{flag} must be one of {', '.join(allowed)}, got {value!r}")
