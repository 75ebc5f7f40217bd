"""How far behind training are followers of the change feed, and what does publishing cost training?

Cost: the same updates, back to back, on a store with a feed and on one without, in interleaved rounds. All rows changed
within 0.1 s are published, which is the worst case. Lag: one process updates 4096 rows of a million every 20 ms, writes
the time of the call into their weights, and makes checkpoints. Another process follows the feed and compares that time
with its own clock when it has the row.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks import common

DIM = 16
ROWS = 1_000_000
BATCH = 4096
PERIOD_S = 0.02
CHECKPOINT_S = 3.0
# Long enough for many publishing intervals.
ROUND_S = 1.5


def ids_of(rng: np.random.Generator) -> np.ndarray:
    """A batch in which some ids are frequent, as in click logs."""
    return (rng.zipf(1.05, BATCH) - 1) % ROWS


def follow(folder: str) -> None:
    """Follow until the table `done` has a row, then print the lags in milliseconds."""
    lags: list[np.ndarray] = []
    for event in rowmill.ChangeFeed(folder).follow(timeout_s=60):
        now = time.monotonic()
        if isinstance(event, rowmill.FeedRows) and event.published_ns:
            if event.table == "done":
                break
            stamps = event.weights[:, 0].astype(np.float64) + event.weights[:, 1] / 1e6
            lags.append((now - stamps[stamps > 0]) * 1e3)
    lag = np.concatenate(lags)
    print(
        json.dumps(
            {
                "rows": len(lag),
                "lag_ms_median": float(np.median(lag)),
                "lag_ms_p99": float(np.percentile(lag, 99)),
                "lag_ms_max": float(lag.max()),
            }
        )
    )


def lag(folder: str, seconds: float, rng: np.random.Generator) -> dict[str, float]:
    """Update at a steady rate while a follower reads the feed; returns the follower's measurements."""
    with rowmill.open(folder, memory="512MiB", feed="256MiB") as store:
        table = store.table("t", dim=DIM, optimizer=rowmill.optim.SGD(lr=0.01))
        done = store.table("done", dim=DIM, optimizer=rowmill.optim.SGD(lr=0.01))
        follower = subprocess.Popen(
            [sys.executable, __file__, "--follow", folder], stdout=subprocess.PIPE, text=True
        )
        # Wait until the follower has loaded its libraries, which would count as lag.
        time.sleep(8)
        values = np.zeros((BATCH, DIM), np.float32)
        begun = time.monotonic()
        saved, late, stalls = begun, 0.0, [0.0]
        while (now := time.monotonic()) < begun + seconds:
            values[:, 0] = int(now)
            values[:, 1] = int(now % 1 * 1e6)
            table.put(ids_of(rng), values)
            if now - saved > CHECKPOINT_S:
                saved = now
                stalls.append(store.checkpoint()["stall_s"])
            late = max(late, time.monotonic() - now)
            time.sleep(max(0.0, now + PERIOD_S - time.monotonic()))
        done.put([1], np.zeros((1, DIM), np.float32))
        found = json.loads(follower.communicate(timeout=120)[0])
        return {
            **found,
            "step_ms_max": late * 1e3,
            "checkpoint_stall_ms_max": max(stalls) * 1e3,
            "checkpoints": len(stalls) - 1,
            "rows_published": store.stats()["feed_rows"],
        }


def main() -> None:
    if sys.argv[1:2] == ["--follow"]:
        follow(sys.argv[2])
        return
    benchmark = common.Benchmark(common.parse_arguments(__doc__))
    quick = benchmark.settings.quick
    rng = np.random.default_rng(benchmark.settings.seed)
    batches = {
        "zipf": [ids_of(rng) for _ in range(256)],
        "uniform": [rng.permutation(ROWS)[:BATCH] for _ in range(256)],
    }
    gradients = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        stores = {
            name: rowmill.open(f"{folder}/{name}", memory="512MiB", feed=feed)
            for name, feed in {"off": None, "on": "256MiB"}.items()
        }
        tables = {
            name: store.table("t", dim=DIM, optimizer=rowmill.optim.Adagrad(lr=0.01))
            for name, store in stores.items()
        }
        for table in tables.values():
            for first in range(0, ROWS, 100_000):
                table.get_or_init(np.arange(first, first + 100_000))

        def update(ids: str, name: str) -> int:
            steps = 0
            end = time.perf_counter() + ROUND_S
            while time.perf_counter() < end:
                tables[name].rmw(batches[ids][steps % 256], gradients)
                steps += 1
            return steps * BATCH

        samples = benchmark.compare(
            {
                f"{ids}_{name}": lambda ids=ids, name=name: update(ids, name)
                for ids in batches
                for name in stores
            },
            rounds=7 if quick else 15,
        )
        for store in stores.values():
            store.close()
    for ids in batches:
        ratio = common.ratio(samples[f"{ids}_on"], samples[f"{ids}_off"])
        benchmark.summarize(f"{ids}_rate_on_over_off", ratio)
    for name, measured in samples.items():
        benchmark.summarize(f"{name}_ids_per_s", common.units_per_s(measured))
        benchmark.summarize(f"{name}_cpu_us_per_id", common.cpu_us_per_unit(measured))
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        found = lag(folder, 12 if quick else 60, rng)
    benchmark.cells.append({"variant": "lag", **found})
    benchmark.summary.update({name: value for name, value in found.items() if "_ms_" in name})
    benchmark.write()


if __name__ == "__main__":
    main()
