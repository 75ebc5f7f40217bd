"""One rank of `dlrm.py`: a process that `dlrm.py` or `torchrun` started.

    python benchmarks/dlrm_scaling/rank.py FD    # started by the program

The settings come as JSON on standard input. The rank writes its messages to the file descriptor, one JSON object per
line: the step it begins, the reason of a failure, or its measurements.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

import rowmill

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.dlrm_scaling.random_batch import make_batch, table_names
from benchmarks.dlrm_scaling.settings import Settings
from benchmarks.dlrm_scaling.step import Trainer
from benchmarks.dlrm_scaling.timeline import Timeline, Times
from rowmill.distributed import Ranks, ShardedCollection, Watch, plan_of_ranks, torchrun
from rowmill.distributed.cores import Pin, cores_of
from rowmill.distributed.placement import AUTO
from rowmill.distributed.torchrun import Launched
from rowmill.errors import InvalidInput, RankLost, RowmillError
from rowmill.nn import Feature
from rowmill.optim.specs import SGD, Adagrad
from rowmill.train.backend import dense_device, torch_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.dlrm_scaling.random_batch import RandomBatch, Skew
    from benchmarks.dlrm_scaling.shapes import Shape
    from benchmarks.dlrm_scaling.step import Comm, Precision
    from rowmill.distributed.placement import PlacementSetting
    from rowmill.store.store import Store

BATCHES = 4
"""Number of distinct batches, used in rotation."""

DIRECT_ROWS_MAX = 1 << 22
"""Tables up to this size are indexed by id. Larger ones use a hash index, which takes no memory for unused rows."""

GRACE_S = 5.0
"""Time for a rank to close its store after another rank was lost."""


class Failed(Exception):
    """A rank failed: the reason, the step, and whether it was waiting for another rank."""

    def __init__(self, message: str, step: int, *, waiting: bool, invalid: bool) -> None:
        super().__init__(message)
        self.step = step
        self.waiting = waiting
        self.invalid = invalid


@dataclass(frozen=True)
class RankProcess:
    """The position of this process among the ranks.

    Attributes:
        rank: Number among all ranks.
        local_rank: Number among the ranks on this machine.
        local_ranks: Number of ranks on this machine.
        meeting: File for the rendezvous; None: use the environment variables of `torchrun`.
    """

    rank: int
    local_rank: int
    local_ranks: int
    meeting: str | None


def measure(
    settings: Settings, place: RankProcess, tell: Callable[[int], None], *, gather: bool = False
) -> list[dict[str, Any]]:
    """Run the steps of one rank; returns its measurements, or those of every rank.

    Args:
        settings: Settings of the run.
        place: The position of this rank.
        tell: Called with the number of every step that begins.
        gather: Collect the measurements of all ranks; a collective.

    Raises:
        Failed: The run failed, for any reason.
    """
    step = 0
    timeline = Timeline()

    def begins(number: int) -> None:
        nonlocal step
        step = number
        tell(number)

    try:
        return _measure(settings, place, timeline, begins, gather=gather)
    except Exception as error:
        message = (
            str(error) if isinstance(error, RowmillError) else f"{type(error).__name__}: {error}"
        )
        first_line = message.strip().splitlines()[0] if message.strip() else type(error).__name__
        raise Failed(
            first_line,
            step,
            waiting=timeline.lost or isinstance(error, RankLost),
            invalid=isinstance(error, InvalidInput),
        ) from error


def _measure(
    settings: Settings,
    place: RankProcess,
    timeline: Timeline,
    begins: Callable[[int], None],
    *,
    gather: bool,
) -> list[dict[str, Any]]:
    available = sorted(os.sched_getaffinity(0))
    of_ranks = [
        cores_of(
            local,
            place.local_ranks,
            available,
            pin=cast("Pin", settings.pin),
            threads=settings.threads,
        )
        for local in range(place.local_ranks)
    ]
    cores = of_ranks[place.local_rank]
    device = dense_device(settings.backend, place.local_rank)
    if device.type == "cuda":
        timeline.settle = torch.cuda.current_stream(device).synchronize
    torch.set_num_threads(cores.threads)
    # New threads inherit the affinity of the thread that creates them; the process group creates its threads here.
    if settings.pin != "off":
        os.sched_setaffinity(0, cores.comm)
        # oneCCL wants a core for the worker of each rank on this machine.
        workers = [str(of.comm[0]) for of in of_ranks]
        os.environ.setdefault("CCL_WORKER_AFFINITY", ",".join(workers))
    meet(settings, place)
    try:
        ranks = Ranks(timeout_s=settings.timeout_s)
        os.sched_setaffinity(0, cores.compute)
        watch = Watch(
            ranks,
            silence_s=max(settings.timeout_s, 1.0),
            grace_s=GRACE_S,
            advice="this run has no results",
        )
        with watch, tempfile.TemporaryDirectory(prefix="rowmill-bench-") as folder:

            def step(number: int) -> None:
                begins(number)
                watch.step(number)

            path = Path(settings.store or folder) / f"rank{place.rank}"
            shape = settings.shape
            with open_store(settings, shape, path, cores.threads) as store:
                batches = make_batches(settings, shape, place.rank)
                rows = open_rows(settings, shape, store, ranks, batches)
                torch.manual_seed(settings.seed)
                trainer = Trainer(
                    shape,
                    rows,
                    comm=cast("Comm", settings.comm),
                    precision=cast("Precision", settings.precision),
                    samples=settings.samples,
                    device=device,
                    timeline=timeline,
                )
                result = {
                    "rank": place.rank,
                    "cores": asdict(cores),
                    "placements": rows.placements,
                    **_steps(settings, trainer, batches, step),
                }
                return ranks.gather(result) if gather else [result]
    finally:
        dist.destroy_process_group()


def _steps(
    settings: Settings, trainer: Trainer, batches: list[RandomBatch], begins: Callable[[int], None]
) -> dict[str, Any]:
    losses: list[float] = []

    def step(number: int, following: int | None) -> None:
        begins(number + 1)
        after = None if following is None else batches[following % len(batches)]
        losses.append(trainer.step(batches[number % len(batches)], after).item())

    total = settings.warmup + settings.steps
    for number in range(total):
        if number == settings.warmup:
            dist.barrier()
            trainer.timeline.times = Times()
            trainer.rows.traffic.reset()
        step(number, number + 1)
    measured = described(trainer.timeline.times, settings.steps), traffic(trainer, settings)
    # The last measured step began work for a following step, so one more step completes it.
    step(total, None)
    return {"losses": losses, **measured[0], **measured[1]}


def meet(settings: Settings, place: RankProcess) -> None:
    """Initialize torch.distributed."""
    backend = torch_backend(settings.backend)
    here = Launched.here()
    if place.meeting is None and here is not None:
        wait_s = settings.timeout_s
        torchrun.meet(here, backend, meeting_s=wait_s, wait_s=wait_s)
        return
    dist.init_process_group(
        backend,
        init_method="env://" if place.meeting is None else f"file://{place.meeting}",
        rank=place.rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=settings.timeout_s),
    )


def open_store(settings: Settings, shape: Shape, path: Path, threads: int) -> Store:
    """Open the store of one rank, with enough memory for all its rows."""
    wanted = memory_bytes(shape, seen=BATCHES * settings.samples, ranks=settings.ranks)
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (2 * settings.ranks)
    memory = settings.memory or min(wanted, most)
    return rowmill.open(path, memory=memory, threads=threads, seed=settings.seed)


def memory_bytes(shape: Shape, *, seen: int, ranks: int) -> int:
    """Memory for the store of one rank, so that all rows that `seen` samples look up stay in memory."""
    state = 2 if shape.optimizer == "adagrad" else 1
    row_bytes = sum(
        min(rows, seen * lookups) * (4 * shape.dim * state + 64)
        for rows, lookups in zip(shape.rows, shape.lookups, strict=True)
    )
    index_bytes = sum(16 * rows for rows in shape.rows if rows <= DIRECT_ROWS_MAX)
    return 2 * row_bytes // ranks + index_bytes + (256 << 20)


def make_features(shape: Shape, store: Store, precision: Precision) -> list[Feature]:
    """Create the tables of a shape; each has one feature."""
    optimizer = Adagrad(lr=shape.lr) if shape.optimizer == "adagrad" else SGD(lr=shape.lr)
    tables = [
        store.table(
            name,
            dim=shape.dim,
            optimizer=optimizer,
            num_rows=rows if rows <= DIRECT_ROWS_MAX else None,
            dtype=precision,
        )
        for name, rows in zip(table_names(shape), shape.rows, strict=True)
    ]
    return [Feature(table.name, table) for table in tables]


def make_batches(settings: Settings, shape: Shape, rank: int) -> list[RandomBatch]:
    """The batches of one rank."""
    return [
        make_batch(
            shape,
            cast("Skew", settings.skew),
            samples=settings.samples,
            part=settings.part(rank),
            seed=settings.seed * BATCHES + number,
        )
        for number in range(min(BATCHES, settings.warmup + settings.steps))
    ]


def open_rows(
    settings: Settings, shape: Shape, store: Store, ranks: Ranks, batches: list[RandomBatch]
) -> ShardedCollection:
    """Create the tables of a shape, sharded over all ranks."""
    features = make_features(shape, store, cast("Precision", settings.precision))
    placement: PlacementSetting = settings.placement
    if placement == AUTO:
        # The collection would leave out placements that a checkpoint has to keep, and this run makes none.
        plan = plan_of_ranks(features, [batch.ids for batch in batches], ranks=ranks)
        placement = plan.placement
    return ShardedCollection(
        features,
        ranks=ranks,
        placement=placement,
        rows_on_wire="fp32" if settings.precision == "fp32" else "bf16",
        output_dtype=torch.float32 if settings.precision == "fp32" else torch.bfloat16,
    )


def described(times: Times, steps: int) -> dict[str, Any]:
    """Milliseconds per step: of each step, and the mean of every phase and collective."""

    def mean(of: dict[str, float]) -> dict[str, float]:
        return {name: 1e3 * seconds / steps for name, seconds in of.items()}

    return {
        "step_ms": [1e3 * seconds for seconds in times.step_s],
        "phase_ms": mean(times.phase_s),
        "exposed_ms": mean(times.exposed_s),
        "total_ms": mean(times.total_s),
    }


def traffic(trainer: Trainer, settings: Settings) -> dict[str, Any]:
    """Messages per step of this rank, and bytes to other ranks; an allreduce counts as a ring."""
    counted, buckets = trainer.rows.traffic, trainer.buckets
    ring = 2 * (settings.ranks - 1) / settings.ranks
    sent = {leg: count / settings.steps for leg, count in counted.bytes_sent.items()}
    rounds = {leg: count / settings.steps for leg, count in counted.rounds.items()}
    return {
        "bytes": {**sent, "allreduce": ring * buckets.bytes_total},
        "rounds": {**rounds, "allreduce": len(buckets.buckets)},
    }


def main() -> None:
    """Read the settings, run, and report the result."""
    words = os.fdopen(int(sys.argv[1]), "w")

    def say(word: dict[str, Any]) -> None:
        words.write(json.dumps(word) + "\n")
        words.flush()

    job = json.load(sys.stdin)
    settings, place = Settings(**job["settings"]), RankProcess(**job["place"])
    # The parent has ended, so nothing would read the result.
    with suppress(BrokenPipeError):
        try:
            (result,) = measure(settings, place, lambda step: say({"step": step}))
            say({"done": result})
        except Failed as error:
            say(
                {
                    "failed": str(error),
                    "step": error.step,
                    "waiting": error.waiting,
                    "invalid": error.invalid,
                }
            )
    # Skip the cleanup, which could wait for a collective that never ends.
    os._exit(0)


if __name__ == "__main__":
    main()
