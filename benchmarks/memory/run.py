"""Does a store stay within its memory budget while its tables outgrow it?

For several budgets and row widths a process of its own fills a table to four times the budget in random
order, with training reads, updates, lookahead and checkpoints in between. The resident memory of the
process, sampled 100 times a second, is compared with what it was before the store was opened.
"""

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks import common
from rowmill.size import parse_size
from rowmill.train.machine import resident_bytes

BATCH = 4096


class Peak:
    """The largest resident memory of this process since `begin`."""

    def __init__(self) -> None:
        self.begin = self.bytes = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, resident_bytes())

    def growth(self) -> int:
        """Stop watching; bytes above the beginning."""
        self._stop.set()
        self._thread.join()
        return self.bytes - self.begin


def fill(memory: str, dim: int, seed: int) -> dict[str, float]:
    """Fill one table to four times the budget; in a process of its own."""
    rng = np.random.default_rng(seed)
    gradients = np.full((BATCH, dim), 1e-3, np.float32)
    out = np.empty((BATCH, dim), np.float32)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        # The first call of a library brings its code into memory: that is not the store's.
        rng.permutation(BATCH)
        peak = Peak()
        store = rowmill.open(folder, memory=memory)
        table = store.table("t", dim=dim, optimizer=rowmill.optim.Adagrad(lr=0.01))
        rows = 4 * parse_size(memory) // (8 * dim)
        steps = rows // BATCH
        order = rng.permutation(steps * BATCH).astype(np.int64).reshape(steps, BATCH)
        for step in range(steps):
            known = order[rng.integers(0, step + 1)]
            table.lookahead(known)
            table.get_or_init(order[step], out=out)
            table.rmw(known, gradients)
            if step % (steps // 4) == steps // 8:
                store.checkpoint()
        stats = store.stats()
        growth = peak.growth() - order.nbytes
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


def main() -> None:
    if sys.argv[1:2] == ["--fill"]:
        memory, dim, seed = sys.argv[2:5]
        print(json.dumps(fill(memory, int(dim), int(seed))))
        return
    benchmark = common.Benchmark(common.parse_arguments(__doc__))
    quick = benchmark.settings.quick
    budgets = ["64MiB", "256MiB"] if quick else ["64MiB", "256MiB", "1GiB"]
    ratios: dict[str, list[float]] = {}

    def run(memory: str, dim: int) -> int:
        command = [
            sys.executable,
            __file__,
            "--fill",
            memory,
            str(dim),
            str(benchmark.settings.seed),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        name = f"{memory}_dim{dim}"
        ratios.setdefault(name, []).append(found["growth_bytes"] / parse_size(memory))
        benchmark.cells.append({"variant": name, **found})
        return int(found["rows"])

    variants = {
        f"{memory}_dim{dim}": lambda memory=memory, dim=dim: run(memory, dim)
        for memory in budgets
        for dim in (16, 128)
    }
    benchmark.compare(variants, rounds=1 if quick else 3, warm_up=0)
    for name, values in ratios.items():
        benchmark.summarize(f"{name}_growth_over_budget", common.Median.of(values))
    benchmark.summary["worst_growth_over_budget"] = max(max(values) for values in ratios.values())
    benchmark.write()


if __name__ == "__main__":
    main()
