"""Does a store stay within its memory budget while its tables exceed it?

For several budgets and row widths, a separate process fills a table to four times the budget in random order, with
training reads, updates, lookahead and checkpoints in between. The resident memory of the process, sampled 100 times per
second, is compared with its value before the store was opened.
"""

import ctypes
import json
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks import common
from benchmarks.common import Median
from rowmill.size import parse_size
from rowmill.train.machine import resident_bytes

BATCH = 4096
DIMS = (16, 128)
BESIDE = 4 << 20
"""Bytes allowed beyond 1.05 times the budget: thread stacks, and free pages that the allocator keeps."""


class Peak:
    """The peak of this process's resident memory since construction."""

    def __init__(self) -> None:
        self.begin = self.bytes = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, resident_bytes())

    def growth(self) -> int:
        """Stop sampling; returns the bytes above the start."""
        self._stop.set()
        self._thread.join()
        return self.bytes - self.begin


def fill(memory: str, dim: int, seed: int) -> dict[str, float]:
    """Fill one table to four times the budget; run in its own process."""
    rng = np.random.default_rng(seed)
    gradients = np.full((BATCH, dim), 1e-3, np.float32)
    out = np.ones((BATCH, dim), np.float32)
    rows = 4 * parse_size(memory) // (8 * dim)
    steps = rows // BATCH
    order = rng.permutation(steps * BATCH).astype(np.int64).reshape(steps, BATCH)
    # In the repository, because /tmp may be in memory.
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as folder:
        # All arrays of the caller have been touched by now. Return free heap pages to the kernel, so that they do not count.
        ctypes.CDLL(None).malloc_trim(0)
        peak = Peak()
        store = rowmill.open(folder, memory=memory)
        table = store.table("t", dim=dim, optimizer=rowmill.optim.Adagrad(lr=0.01))
        for step in range(steps):
            known = order[rng.integers(0, step + 1)]
            table.lookahead(known)
            table.get_or_init(order[step], out=out)
            table.rmw(known, gradients)
            if step % (steps // 4) == steps // 8:
                store.checkpoint()
        stats = store.stats()
        growth = peak.growth()
        store.close()
    counted = sum(
        stats[name] for name in ("index_bytes", "row_bytes", "overhead_bytes", "buffer_bytes")
    )
    return {
        "rows": rows,
        "growth_bytes": growth,
        "counted_bytes": counted,
        "index_bytes": stats["index_bytes"],
        "device_live_bytes": stats["device_live_bytes"],
    }


def measure(
    benchmark: common.Benchmark, budgets: Sequence[str], dims: Sequence[int], *, rounds: int
) -> None:
    """Run rounds over all budgets and row widths; results are written after each cell."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def run(name: str, memory: str, dim: int) -> int:
        command = [sys.executable, __file__, "--fill", memory, str(dim)]
        done = subprocess.run(
            [*command, str(benchmark.settings.seed)], check=True, stdout=subprocess.PIPE, text=True
        )
        cell = json.loads(done.stdout)
        budget = parse_size(memory)
        cell["growth_over_budget"] = cell["growth_bytes"] / budget
        cell["growth_over_bound"] = cell["growth_bytes"] / (1.05 * budget + BESIDE)
        benchmark.cells.append({"variant": name, **cell})
        found[name].append(cell)
        for figure in ("growth_over_budget", "growth_over_bound"):
            benchmark.summarize(f"{name}_{figure}", Median.of(of[figure] for of in found[name]))
            worst = max(of[figure] for cells in found.values() for of in cells)
            benchmark.summary[f"worst_{figure}"] = worst
        benchmark.keep()
        return int(cell["rows"])

    variants = {
        name: partial(run, name, memory, dim)
        for memory in budgets
        for dim in dims
        for name in [f"{memory}_dim{dim}"]
    }
    benchmark.compare(variants, rounds=rounds, warm_up=0)


def main() -> None:
    if sys.argv[1:2] == ["--fill"]:
        memory, dim, seed = sys.argv[2:5]
        print(json.dumps(fill(memory, int(dim), int(seed))))
        return
    parser = common.argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, help="number of rounds per cell (default 5, quick 1)")
    parser.add_argument(
        "--budgets",
        metavar="SIZE,...",
        help="memory budgets (default 64MiB,256MiB,1GiB; quick: without 1GiB)",
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    default = "64MiB,256MiB" if arguments.quick else "64MiB,256MiB,1GiB"
    budgets = (arguments.budgets or default).split(",")
    measure(benchmark, budgets, DIMS, rounds=arguments.rounds or (1 if arguments.quick else 5))
    benchmark.write()


if __name__ == "__main__":
    main()
