"""One rank of the benchmark: runs training steps with every variant in turn, and times messages by size.

Started by `run.py` with a JSON object as argument. Rank 0 prints one JSON object per line.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import rowmill
from benchmarks import common
from benchmarks.exchange.cells import Cell
from rowmill._allocator import keep_freed_memory
from rowmill.ctr.models.layers import mlp
from rowmill.distributed import Pipeline, Ranks, RowCache, ShardedCollection
from rowmill.distributed._exchange.exchange import Exchange
from rowmill.distributed.meter import Meter
from rowmill.nn import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from torch import Tensor

    from rowmill import RaggedBatch
    from rowmill.distributed.collection import Prepared

PARTS = ("ask", "send_rows", "send_gradients")
"""Methods of an exchange in the order of a step: kernels and messages, without reading rows in the store."""
_WAITED: dict[str, str] = {"rows": "send_rows", "gradients": "send_gradients"}
"""Messages that are waited for after the method that sends them; the wait is part of it."""
HIDDEN = 64
"""Width of the hidden layer of the dense model."""
EVALUATED = 32
"""Number of batches of an evaluation."""


@dataclass(eq=False)
class Stopwatch(Meter):
    """Time spent in each part of all exchanges of this process, in seconds, waiting included."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def attach(self) -> None:
        """Start to time the methods."""
        for part in PARTS:
            setattr(Exchange, part, self._timed(part, getattr(Exchange, part)))

    @contextmanager
    def waiting(self, leg: str, work: object = None) -> Generator[None]:
        """Measure waiting for messages that another method has sent."""
        begin = time.perf_counter()
        yield
        if leg in _WAITED:
            self._add(_WAITED[leg], begin)

    def _add(self, part: str, begin: float) -> None:
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - begin

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **settings: Any) -> Any:
            begin = time.perf_counter()
            result = method(*arguments, **settings)
            self._add(part, begin)
            return result

        return timed


class Trained:
    """Collections over the same tables, one per variant, and one dense model for all."""

    def __init__(
        self,
        ranks: Ranks,
        cell: Cell,
        folder: Path,
        seed: int,
        variants: dict[str, dict[str, Any]],
        *,
        depth: int = 0,
        precision: Literal["fp32", "split-bf16"] = "fp32",
    ) -> None:
        self.ranks, self.cell = ranks, cell
        self.store = rowmill.open(folder, memory="1GiB", threads=1, seed=seed)
        sgd = rowmill.optim.SGD(lr=0.01)
        tables = [
            self.store.table(
                f"c{n}", dim=cell.dims[n % len(cell.dims)], optimizer=sgd, dtype=precision
            )
            for n in range(cell.categories)
        ]
        features = [Feature(table.name, table) for table in tables]
        narrow = precision != "fp32"
        # bfloat16 in messages, in pooled vectors and in the dense model.
        as_bf16: dict[str, Any] = (
            {"rows_on_wire": "bf16", "output_dtype": torch.bfloat16} if narrow else {}
        )
        self.precision = torch.autocast("cpu", torch.bfloat16, enabled=narrow)
        self.collections = {
            name: ShardedCollection(
                features, ranks=ranks, **{"placement": "rows"} | settings, **as_bf16
            )
            for name, settings in variants.items()
        }
        self.pipelines = {
            name: Pipeline(collection, depth=depth)
            for name, collection in self.collections.items()
            if depth > 0
        }
        torch.manual_seed(seed)
        width = sum(table.dim for table in tables)
        dense = mlp(width, [HIDDEN, 1], relu_last=False)
        self.model = ranks.data_parallel(dense)
        self.optimizer = torch.optim.SGD(dense.parameters(), lr=0.01)
        self.batches = cell.batches(cell.steps, seed + ranks.rank)
        self.labels = (torch.rand(cell.batch) < 0.3).float()

    def coming(self, variant: str) -> Iterator[RaggedBatch | Prepared]:
        """The batches of a round, prepared ahead if the variant asks for it."""
        if variant not in self.pipelines:
            yield from self.batches
            return
        batches = ((batch, None) for batch in self.batches)
        yield from (prepared for prepared, _ in self.pipelines[variant].run(batches))

    def step(self, variant: str, batch: RaggedBatch | Prepared) -> None:
        """Run one training step."""
        self.optimizer.zero_grad()
        pooled = self.collections[variant](batch)
        with self.precision:
            logits = self.model(pooled).view(-1)
        losses = binary_cross_entropy_with_logits(logits.float(), self.labels, reduction="none")
        self.ranks.mean(losses).backward()
        self.optimizer.step()

    def check(self) -> None:
        """Raise unless all variants give bit-identical pooled vectors."""
        pooled: list[Tensor] = []
        for collection in self.collections.values():
            collection.eval()
            pooled.append(collection(self.batches[0]))
            collection.train()
        if not all(torch.equal(pooled[0], other) for other in pooled[1:]):
            raise RuntimeError("the pooled vectors of the variants are not bit-identical")

    def measure(self, variant: str, watch: Stopwatch) -> list[dict[str, Any]]:
        """Run one round of a variant; returns the measurements of every rank."""
        traffic = self.collections[variant].traffic
        traffic.reset()
        self.collections[variant].measure(watch)
        watch.seconds.clear()
        dist.barrier()
        cpu, begin = common.cpu_s(), time.perf_counter()
        for batch in self.coming(variant):
            self.step(variant, batch)
        seen = {
            "wall_s": time.perf_counter() - begin,
            "cpu_s": common.cpu_s() - cpu,
            "seconds": dict(watch.seconds),
            "rounds": dict(traffic.rounds),
            "bytes_sent": dict(traffic.bytes_sent),
            "bytes_held": sum(self.collections[variant].bytes_held.values()),
        }
        return self.ranks.gather(seen)


def cell_rounds(
    ranks: Ranks, cell: Cell, folder: Path, job: dict[str, Any], watch: Stopwatch
) -> None:
    """Run variants in interleaved rounds with a rotating first variant."""
    settings = {"depth": job["depth"], "precision": job["precision"]}
    trained = Trained(ranks, cell, folder, job["seed"], job["variants"], **settings)
    names = list(job["variants"])
    # Two rounds are not measured: the second round of a variant still allocates memory.
    for number in range(-2, job["rounds"]):
        first = number % len(names)
        for variant in names[first:] + names[:first]:
            seen = trained.measure(variant, watch)
            if ranks.rank == 0 and number >= 0:
                say(kind="round", cell=cell.as_json(), variant=variant, round=number, seen=seen)
    trained.check()
    for ahead in job["ahead"]:
        cache_use(trained, ahead, job["seed"])
    trained.store.close()


def cache_use(trained: Trained, ahead: int, seed: int) -> None:
    """Run one evaluation whose rows are cached for up to `ahead` batches; 0: no cache."""
    ranks, cell = trained.ranks, trained.cell
    collection = trained.collections["packed"].eval()
    cache = RowCache(ahead=ahead, memory="256MiB") if ahead > 0 else None
    pipeline = Pipeline(collection, depth=1, row_cache=cache)
    batches = cell.batches(EVALUATED, seed + 100 + ranks.rank)
    collection.traffic.reset()
    dist.barrier()
    begin = time.perf_counter()
    with torch.no_grad():
        for batch, _ in pipeline.run((batch, None) for batch in batches):
            collection(batch)
    seen = {
        "wall_s": time.perf_counter() - begin,
        "use": asdict(pipeline.cache_use),
        "bytes_sent": dict(collection.traffic.bytes_sent),
    }
    collection.train()
    every = ranks.gather(seen)
    if ranks.rank == 0:
        say(kind="cache", cell=cell.as_json(), ahead=ahead, batches=EVALUATED, seen=every)


def message_sizes(ranks: Ranks, sizes: Sequence[int], repeats: int) -> None:
    """Measure the bandwidth of one all-to-all by the bytes sent to each other rank."""
    for size in sizes:
        out = torch.zeros(ranks.count, size, dtype=torch.uint8)
        back = torch.empty_like(out)
        seconds: list[float] = []
        for _ in range(repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_to_all_single(back, out, group=ranks.group)
            seconds.append(time.perf_counter() - begin)
        slowest = [max(of_ranks) for of_ranks in zip(*ranks.gather(seconds), strict=True)]
        if ranks.rank == 0:
            say(kind="message", ranks=ranks.count, bytes=size, seconds=slowest)


def say(**said: Any) -> None:
    """Print one JSON object for `run.py`."""
    print(json.dumps(said), flush=True)


def joined(job: dict[str, Any], *, threads: int) -> Ranks:
    """Use memory as `rowmill train` does, and meet the other ranks of a job in its folder."""
    keep_freed_memory()
    gc.freeze()
    atexit.register(gc.unfreeze)
    torch.set_num_threads(threads)
    meeting = (Path(job["folder"]) / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=job["rank"], world_size=job["ranks"])
    return Ranks()


def main() -> None:
    """Run all cells of a job, then messages alone."""
    job = json.loads(sys.argv[1])
    rank, count, folder = job["rank"], job["ranks"], Path(job["folder"])
    ranks = joined(job, threads=max(1, len(os.sched_getaffinity(0)) // count))
    watch = Stopwatch()
    watch.attach()
    for number, fields in enumerate(job["cells"]):
        place = folder / f"store-{number}-{rank}"
        cell_rounds(ranks, Cell.from_json(fields), place, job, watch)
    message_sizes(ranks, job["sizes"], job["rounds"] * 4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
