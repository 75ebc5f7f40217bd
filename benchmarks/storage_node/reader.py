"""A process that looks rows up: in a store on this machine, or on a node.

It gets its settings as JSON in its only argument, then a JSON object per line, and prints the result of each as one
line. `reader_process.py` starts it.
"""

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import numpy as np

import rowmill
from benchmarks.common import cpu_s
from benchmarks.storage_node.shape import DIM, TABLES, Lookup, distinct_rows, draw, names

_REQUESTS = 32
"""Distinct requests, which rounds repeat where drawing new ones would take the host's time."""
_MEANS = [False] * TABLES


class Reader:
    """Lookups on the tables of RM1.

    Args:
        source: A folder, or the URL of a node.
        rows: Rows of each table.
        first: The first id.
        bags: Samples of a request.
        seed: Of the ids.
        memory: Bytes of memory, where the source is a folder.
    """

    def __init__(
        self, source: str, rows: int, first: int, bags: int, seed: int, memory: int
    ) -> None:
        is_node = "://" in source
        self._store = (
            rowmill.open(source)
            if is_node
            else rowmill.open(source, read_only=True, memory=memory, threads=1)
        )
        self._tables = [self._store.open_table(name).core for name in names()]
        self._rows, self._first, self._bags = rows, first, bags
        # One stream per thread of a round, which goes on from round to round.
        self._streams: dict[int, np.random.Generator] = {}
        self._seed = seed
        rng = np.random.default_rng(seed)
        self._requests = [self._draw(rng) for _ in range(_REQUESTS)]

    def warm(self) -> dict[str, Any]:
        """Look up every row once."""
        count = TABLES * 64
        for begin in range(0, self._rows, count):
            ids = np.arange(begin, min(self._rows, begin + count)) + self._first
            every = np.tile(ids, TABLES)
            offsets = np.arange(0, len(every) + 1, len(ids), dtype=np.int64)
            self._pool(Lookup(every, offsets, 1), self._room(1))
        return {"rows": TABLES * self._rows}

    def pool(self, seconds: float, threads: int, repeats: bool = True) -> dict[str, Any]:
        """Pool requests for some time; `threads` of them at a time. Without `repeats`, each has new ids."""
        done = [0] * threads
        cpu, begun = cpu_s(), time.perf_counter()
        end = begun + seconds

        def work(number: int) -> None:
            turn, out = number, self._room(self._bags)
            while time.perf_counter() < end:
                lookup = self._requests[turn % _REQUESTS] if repeats else self._new(number)
                self._pool(lookup, out)
                done[number] += lookup.rows
                turn += threads

        _together(work, threads)
        return {
            "rows": sum(done),
            "wall_s": time.perf_counter() - begun,
            "cpu_s": cpu_s() - cpu,
        }

    def times(self, count: int) -> dict[str, Any]:
        """Times of single requests with new ids, one after the other."""
        out, taken = self._room(self._bags), list[float]()
        for _ in range(count):
            lookup = self._new(0)
            begun = time.perf_counter()
            self._pool(lookup, out)
            taken.append(time.perf_counter() - begun)
        return {
            "count": count,
            "p50_ms": float(np.percentile(taken, 50) * 1e3),
            "p99_ms": float(np.percentile(taken, 99) * 1e3),
        }

    def once(self, number: int) -> dict[str, Any]:
        """Pool one request; gives a digest of the vectors."""
        lookup = self._requests[number]
        out = self._room(lookup.bags)
        self._pool(lookup, out)
        return {"rows": lookup.rows, "digest": hashlib.sha256(out.tobytes()).hexdigest()}

    def fetch(self, number: int) -> dict[str, Any]:
        """Copy the distinct rows of one request."""
        ids = distinct_rows(self._requests[number])
        counts = [len(of_table) for of_table in ids]
        out = np.empty((sum(counts), DIM), np.float32)
        self._store.core.lookup_rows(
            self._tables, np.concatenate(ids), counts, np.empty(0, np.int32), out, None, False
        )
        return {"rows": len(out)}

    def _draw(self, rng: np.random.Generator) -> Lookup:
        return draw(rng, rows=self._rows, bags=self._bags, first=self._first)

    def _new(self, stream: int) -> Lookup:
        """The next request of a stream."""
        rng = self._streams.setdefault(stream, np.random.default_rng((self._seed, stream)))
        return self._draw(rng)

    def _room(self, bags: int) -> np.ndarray:
        return np.empty((bags, TABLES * DIM), np.float32)

    def _pool(self, lookup: Lookup, out: np.ndarray) -> None:
        self._store.core.lookup(
            self._tables,
            lookup.ids,
            lookup.offsets,
            None,
            range(TABLES),
            lookup.bags,
            [None] * TABLES,
            _MEANS,
            out,
            TABLES * DIM,
            None,
            False,
        )


def _together(work: Any, threads: int) -> None:
    """Run `work(number)` in some threads; the first failure is raised."""
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=guarded, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failed:
        raise failed[0]


def main() -> None:
    """Answer calls until the input ends."""
    reader = Reader(**json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(getattr(reader, call.pop("do"))(**call)), flush=True)


if __name__ == "__main__":
    main()
