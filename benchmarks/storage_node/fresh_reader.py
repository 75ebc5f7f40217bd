"""A process that pools the rows that a trainer changes, on a node, until it has seen every change. `fresh.py` starts it."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks.storage_node.changes import BATCH_ROWS, DIM, TABLE, changed_at, ids_of

_WINDOW = 64
"""Batches that one request asks for, the oldest ones that are not seen yet."""
_PAUSE_S = 0.001
_LAST_S = 60.0
"""Longest wait for the last changes, after the trainer's end."""


def main() -> None:
    """Ask until every change is seen, then print the lags."""
    url, batches, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    store = rowmill.open(url)
    table = store.open_table(TABLE).core
    print(json.dumps({"ready": True}), flush=True)
    origin = float(json.loads(sys.stdin.readline())["origin"])
    unseen, lags, requests = list(range(batches)), list[float](), 0
    end = origin + seconds + _LAST_S
    while unseen:
        if time.monotonic() > end:
            sys.exit(f"{len(unseen)} of {batches} batches never reached the node")
        asked = unseen[:_WINDOW]
        ids = np.concatenate([ids_of(batch) for batch in asked])
        offsets = np.arange(0, len(ids) + 1, BATCH_ROWS, dtype=np.int64)
        out = np.empty((len(asked), DIM), np.float32)
        store.core.lookup(
            [table], ids, offsets, None, [0], len(asked), [None], [False], out, DIM, None, False
        )
        now = time.monotonic() - origin
        requests += 1
        seen: set[int] = set()
        for batch, pooled in zip(asked, out, strict=True):
            if (changed := changed_at(pooled)) is not None:
                lags.append((now - changed) * 1e3)
                seen.add(batch)
        unseen = [batch for batch in unseen if batch not in seen]
        time.sleep(_PAUSE_S)
    print(
        json.dumps(
            {
                "requests": requests,
                "p50_ms": float(np.percentile(lags, 50)),
                "p99_ms": float(np.percentile(lags, 99)),
                "max_ms": max(lags),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
