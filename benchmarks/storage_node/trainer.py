"""A process that changes rows at a steady rate and publishes each change.

Every row of batch `b` gets the time of its change: whole seconds after the start in its first weight, the rest in the
second, and 1 in the third, which was 0. So a sum of the rows of a batch says whether all of them are new, and since when.
`fresh.py` starts it.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks.storage_node.changes import (
    BATCH_ROWS,
    BATCHES,
    DIM,
    PERIOD_S,
    ROWS,
    TABLE,
    ids_of,
    stamped,
)

_CHECKPOINT_S = 5.0
_CHUNK = 100_000


def main() -> None:
    """Make the table, then change rows when the host says so."""
    folder, seconds = sys.argv[1], float(sys.argv[2])
    with rowmill.open(folder, memory="512MiB", feed="256MiB") as store:
        sgd = rowmill.optim.SGD(lr=0.01)
        table = store.table(TABLE, dim=DIM, optimizer=sgd, num_rows=ROWS)
        for first in range(0, ROWS, _CHUNK):
            table.put(np.arange(first, first + _CHUNK), np.zeros((_CHUNK, DIM), np.float32))
        store.checkpoint()
        print(json.dumps({"ready": True}), flush=True)
        origin = float(json.loads(sys.stdin.readline())["origin"])
        batches = min(BATCHES, int(seconds / PERIOD_S))
        late, checkpoints, saved = 0.0, 0, time.monotonic()
        for number in range(batches):
            due = origin + number * PERIOD_S
            time.sleep(max(0.0, due - time.monotonic()))
            now = time.monotonic()
            late = max(late, now - due)
            table.put(ids_of(number), np.tile(stamped(now - origin), (BATCH_ROWS, 1)))
            if now - saved > _CHECKPOINT_S:
                saved = now
                store.checkpoint()
                checkpoints += 1
        print(
            json.dumps({"batches": batches, "checkpoints": checkpoints, "late_ms_max": late * 1e3}),
            flush=True,
        )
        # The feed is published until the host has seen every change.
        sys.stdin.readline()


if __name__ == "__main__":
    main()
