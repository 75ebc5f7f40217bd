"""What does a training step over embedding tables cost, compared with the fastest in-memory tables?

Measures pooled lookups (forward) and training (forward, backward, update) over 26 tables: stored tables with a hash
index and with a direct index, `nn.EmbeddingBag(sparse=True)` with `torch.optim.SGD`, and FBGEMM's table-batched
operator for CPUs if it is installed (see README.md). Everything is in memory. Ids, gradients and the number of threads
are the same for all: two, and forwards also with one.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys

# Set before torch allocates, so that the rows of all sides use huge pages.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import rowmill
from benchmarks import common
from rowmill.nn.ragged import RaggedBatch
from rowmill.store.tables import Dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLES = 26
BATCH = 2048
THREADS = 2
PEERS = ("table_batched", "bag")
RATE = 0.01
ZIPF = 1.05
BATCHES = 32
"""Number of distinct batches, used in rotation; enough that no cache of a core holds their rows."""


@dataclass(frozen=True)
class Shape:
    """One cell of the comparison."""

    dim: int
    lookups: int
    """Ids per bag."""
    skew: str
    rows: int
    """Rows per table."""

    def __str__(self) -> str:
        return f"D{self.dim}_L{self.lookups}_{self.skew}"


@dataclass(frozen=True)
class Batch:
    """The ids of one step in the formats of all engines."""

    ragged: RaggedBatch
    ids: tuple[Tensor, ...]
    """Per table, int64 [BATCH * lookups]."""
    offsets: Tensor
    """Offset of every bag of one table, int64 [BATCH]."""
    all_offsets: Tensor
    """Offset of every bag over all tables, int64 [TABLES * BATCH + 1]."""


class Engine(Protocol):
    """An engine with tables that can be looked up and trained."""

    def forward(self, batch: Batch) -> None:
        """Pool the rows of a batch."""
        ...

    def train(self, batch: Batch, gradient: Tensor) -> None:
        """Pool the rows of a batch, and update them with this gradient of the pooled vectors."""
        ...


def batches(shape: Shape, seed: int) -> list[Batch]:
    """Batches of ids. Frequent ids are scattered over the whole range, differently in every table."""
    random = np.random.default_rng(seed)
    count = BATCH * shape.lookups
    weights = np.arange(1, shape.rows + 1, dtype=np.float64) ** -ZIPF
    shares: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    orders = [random.permutation(shape.rows) for _ in range(TABLES)]
    made: list[Batch] = []
    for _ in range(BATCHES):
        ids: list[Tensor] = []
        for table in range(TABLES):
            if shape.skew == "uniform":
                drawn = random.integers(0, shape.rows, count)
            else:
                ranks: NDArray[np.intp] = np.searchsorted(shares, random.random(count))
                drawn = orders[table][np.minimum(ranks, shape.rows - 1)]
            ids.append(torch.from_numpy(drawn))
        offsets = torch.arange(0, TABLES * count + 1, shape.lookups)
        names = tuple(f"t{table}" for table in range(TABLES))
        ragged = RaggedBatch(names, torch.cat(ids), offsets)
        made.append(Batch(ragged, tuple(ids), offsets[:BATCH], offsets))
    return made


class Stored:
    """Tables of a store."""

    def __init__(
        self,
        shape: Shape,
        optimizer: str,
        *,
        direct: bool,
        folder: Path,
        threads: int = THREADS,
        dtype: Dtype = "fp32",
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        rows = shape.rows * TABLES
        memory = rows * (4 * shape.dim + 64) * 3 // 2 + (256 << 20)
        self._store = rowmill.open(folder, memory=memory, threads=threads)
        spec = {
            "sgd": rowmill.optim.SGD(lr=RATE),
            "rowwise_adagrad": rowmill.optim.RowwiseAdagrad(lr=RATE),
        }[optimizer]
        tables = [
            self._store.table(
                f"t{number}",
                dim=shape.dim,
                dtype=dtype,
                optimizer=spec,
                num_rows=shape.rows if direct else None,
            )
            for number in range(TABLES)
        ]
        for table in tables:
            for first in range(0, shape.rows, 1 << 16):
                ids = torch.arange(first, min(first + (1 << 16), shape.rows))
                table.put(ids, torch.full((len(ids), shape.dim), 0.01))
        features = [rowmill.nn.Feature(table.name, table) for table in tables]
        self._bags = rowmill.nn.EmbeddingCollection(features, output_dtype=output_dtype)

    def forward(self, batch: Batch) -> None:
        """Pool the rows of a batch."""
        with torch.no_grad():
            self._bags(batch.ragged)

    def train(self, batch: Batch, gradient: Tensor) -> None:
        """Pool the rows of a batch and update them."""
        self._bags(batch.ragged).backward(gradient)

    def close(self) -> None:
        """Close the store, which frees the rows' memory."""
        self._store.close()


class TorchBags:
    """One `nn.EmbeddingBag` per table, with sparse gradients."""

    def __init__(self, shape: Shape) -> None:
        self._bags = [
            nn.EmbeddingBag(
                shape.rows,
                shape.dim,
                mode="sum",
                sparse=True,
                _weight=torch.full((shape.rows, shape.dim), 0.01),
            )
            for _ in range(TABLES)
        ]
        self._dim = shape.dim
        self._sgd = torch.optim.SGD([bag.weight for bag in self._bags], lr=RATE)

    def _pool(self, batch: Batch) -> list[Tensor]:
        offsets = batch.offsets
        return [bag(ids, offsets) for bag, ids in zip(self._bags, batch.ids, strict=True)]

    def forward(self, batch: Batch) -> None:
        """Pool the rows of a batch."""
        with torch.no_grad():
            self._pool(batch)

    def train(self, batch: Batch, gradient: Tensor) -> None:
        """Pool the rows of a batch and update them."""
        self._sgd.zero_grad()
        torch.autograd.backward(self._pool(batch), torch.split(gradient, self._dim, dim=1))
        self._sgd.step()


class TableBatched:
    """FBGEMM's table-batched operator for CPUs."""

    def __init__(self, shape: Shape, optimizer: str) -> None:
        ops: Any = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        self._bags: Any = ops.SplitTableBatchedEmbeddingBagsCodegen(
            [(shape.rows, shape.dim, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)] * TABLES,
            optimizer={
                "sgd": ops.OptimType.EXACT_SGD,
                "rowwise_adagrad": ops.OptimType.EXACT_ROWWISE_ADAGRAD,
            }[optimizer],
            learning_rate=RATE,
        )
        for weights in self._bags.split_embedding_weights():
            weights.fill_(0.01)

    def forward(self, batch: Batch) -> None:
        """Pool the rows of a batch."""
        with torch.no_grad():
            self._bags(batch.ragged.values, batch.all_offsets)

    def train(self, batch: Batch, gradient: Tensor) -> None:
        """Pool the rows of a batch and update them."""
        self._bags(batch.ragged.values, batch.all_offsets).backward(gradient)


def fbgemm_is_there() -> bool:
    """Whether FBGEMM can be loaded; prints the reason if not."""
    try:
        import_module("fbgemm_gpu")
    except (ImportError, OSError) as error:
        print(f"running without FBGEMM: {error}", file=sys.stderr)
        return False
    return True


def shapes(quick: bool) -> Iterator[Shape]:
    """All cells. The tables of all engines fit into 14 GB together; those of one engine exceed every cache."""
    for dim, rows in ((16, 1_000_000), (64, 400_000), (128, 200_000)):
        for lookups in (1, 20):
            for skew in ("zipf", "uniform"):
                yield Shape(dim, lookups, skew, rows // 4 if quick else rows)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--dtypes",
        action="store_true",
        help="compare the forward of stored rows in split-bf16 and fp32 instead, without other engines",
    )
    parser.add_argument(
        "--limit",
        action="store_true",
        help="measure instead what the second cache miss of a hash index costs a bare loop",
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    if arguments.limit:
        limit(benchmark)
        return
    torch.set_num_threads(THREADS)
    keep_memory_of_results()
    peers = not arguments.dtypes and fbgemm_is_there()
    for shape in shapes(quick):
        made = batches(shape, seed)
        if arguments.dtypes:
            compare_dtypes(benchmark, shape, made)
            benchmark.keep()
            gc.collect()
            continue
        for optimizer, threads in (("sgd", THREADS), ("sgd", 1), ("rowwise_adagrad", THREADS)):
            compare(benchmark, shape, optimizer, made, peers, threads)
            benchmark.keep()
            gc.collect()  # Free the tables of this cell before the next cell allocates.
    benchmark.write()


def limit(benchmark: common.Benchmark) -> None:
    """Rate of a loop that reads a bucket and a row for each id, over that of a loop that reads the row alone."""
    program = common.bench_program()
    for shape in shapes(benchmark.settings.quick):
        options = {
            "rows": shape.rows,
            "tables": TABLES,
            "row-bytes": 4 * shape.dim,
            "batch": BATCH,
            "bag": shape.lookups,
            "zipf": ZIPF if shape.skew == "zipf" else 0,
            "seconds": 1 if benchmark.settings.quick else 2,
            "rounds": 3 if benchmark.settings.quick else 7,
            "seed": benchmark.settings.seed,
        }
        command = [str(program), "pooling"]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        lines: list[dict[str, Any]] = [
            {"cell": str(shape), **json.loads(line)} for line in done.stdout.splitlines()
        ]
        benchmark.cells.extend(lines)
        rates: dict[str, list[float]] = {
            engine: [line["rows"] / line["cpu_s"] for line in lines if line["engine"] == engine]
            for engine in ("array", "index")
        }
        for engine, taken in rates.items():
            benchmark.summarize(f"{shape}_{engine}_rows_per_cpu_s", common.Median.of(taken))
        both = zip(rates["index"], rates["array"], strict=True)
        benchmark.summarize(
            f"{shape}_index_over_array", common.Median.of(index / array for index, array in both)
        )
        benchmark.keep()
    benchmark.write()


def keep_memory_of_results() -> None:
    """Make glibc keep freed memory of up to 32 MiB. Otherwise page faults in results take half of a peer's time."""
    trim_threshold, mmap_threshold = -1, -3  # Parameters of mallopt(3).
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 32 << 20)
    libc.mallopt(trim_threshold, 1 << 30)


def compare(
    benchmark: common.Benchmark,
    shape: Shape,
    optimizer: str,
    made: list[Batch],
    peers: bool,
    threads: int,
) -> None:
    """Compare all engines for one shape and optimizer. With one thread only forwards are measured."""
    torch.set_num_threads(threads)
    gradient = torch.full((BATCH, TABLES * shape.dim), 1e-3)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as name:
        engines: dict[str, Engine] = {
            index: Stored(
                shape,
                optimizer,
                direct=index == "direct",
                folder=Path(name) / index,
                threads=threads,
            )
            for index in ("hash", "direct")
        }
        if peers:
            engines["table_batched"] = TableBatched(shape, optimizer)
        if optimizer == "sgd":
            engines["bag"] = TorchBags(shape)
        works = {"sgd": ["forward", "train"], "rowwise_adagrad": ["train"]}[optimizer]
        for work in works if threads > 1 else ["forward"]:
            cell = f"{shape}_{work}_{optimizer}" + ("_one_thread" if threads == 1 else "")
            # A round of forwards takes 0.1 s or more: after the work of another engine, the first steps are slower.
            steps = (4 if shape.lookups > 1 else 16) * (8 if work == "forward" else 1)
            variants = {
                f"{cell}_{engine}": run(tables, work, made, gradient, steps)
                for engine, tables in engines.items()
            }
            rounds = 3 if benchmark.settings.quick else 7
            summarize(benchmark, cell, benchmark.compare(variants, rounds=rounds))
        for tables in engines.values():
            if isinstance(tables, Stored):
                tables.close()


def compare_dtypes(benchmark: common.Benchmark, shape: Shape, made: list[Batch]) -> None:
    """Compare forwards of split-bf16 rows, whose lookups read half the bytes, with fp32 rows.

    The split-bf16 rows give bfloat16 vectors, for models that run in bfloat16, or vectors widened to fp32.
    """
    gradient = torch.empty(0)
    cell = f"{shape}_forward"
    with tempfile.TemporaryDirectory(prefix="rowmill-") as name:
        kinds: dict[str, tuple[Dtype, torch.dtype]] = {
            "fp32": ("fp32", torch.float32),
            "split-bf16": ("split-bf16", torch.bfloat16),
            "split-bf16-widened": ("split-bf16", torch.float32),
        }
        engines = {
            f"{cell}_{index}_{kind}": Stored(
                shape,
                "sgd",
                direct=index == "direct",
                folder=Path(name) / index / kind,
                dtype=dtype,
                output_dtype=output_dtype,
            )
            for index in ("hash", "direct")
            for kind, (dtype, output_dtype) in kinds.items()
        }
        steps = 16 if shape.lookups > 1 else 64
        variants = {
            variant: run(engine, "forward", made, gradient, steps)
            for variant, engine in engines.items()
        }
        samples = benchmark.compare(variants, rounds=5 if benchmark.settings.quick else 9)
        for variant, taken in samples.items():
            benchmark.summarize(f"{variant}_rows_per_s", common.units_per_s(taken))
        for index in ("hash", "direct"):
            whole = samples[f"{cell}_{index}_fp32"]
            for kind in ("split-bf16", "split-bf16-widened"):
                half = samples[f"{cell}_{index}_{kind}"]
                benchmark.summarize(f"{cell}_{index}_{kind}_over_fp32", common.ratio(half, whole))
        for engine in engines.values():
            engine.close()


def run(
    engine: Engine, work: str, made: list[Batch], gradient: Tensor, steps: int
) -> Callable[[], int]:
    """The work of one round: several steps; returns the number of looked-up rows."""
    ids = cycle(made)

    def steps_of_work() -> int:
        rows = 0
        for _, batch in zip(range(steps), ids, strict=False):
            if work == "forward":
                engine.forward(batch)
            else:
                engine.train(batch, gradient)
            rows += len(batch.ragged.values)
        return rows

    return steps_of_work


def summarize(
    benchmark: common.Benchmark, cell: str, samples: dict[str, list[common.Sample]]
) -> None:
    """Add the rates of all engines, and ours relative to the faster peer."""
    for name, taken in samples.items():
        benchmark.summarize(f"{name}_rows_per_s", common.units_per_s(taken))
    peers = [name for peer in PEERS if (name := f"{cell}_{peer}") in samples]
    if not peers:
        return
    fastest = max(peers, key=lambda name: common.units_per_s(samples[name]).value)
    thriftiest = min(peers, key=lambda name: common.cpu_us_per_unit(samples[name]).value)
    for ours in ("hash", "direct"):
        taken = samples[f"{cell}_{ours}"]
        benchmark.summarize(f"{cell}_{ours}_over_peer", common.ratio(taken, samples[fastest]))
        benchmark.summarize(
            f"{cell}_{ours}_over_peer_per_cpu_second",
            common.Median.of(
                (one.units / one.cpu_s) / (other.units / other.cpu_s)
                for one, other in zip(taken, samples[thriftiest], strict=True)
            ),
        )


if __name__ == "__main__":
    main()
