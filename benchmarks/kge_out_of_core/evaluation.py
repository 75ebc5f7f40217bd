"""Filtered ranking in its own process, so that its memory can be limited by a memory group.

    evaluation.py STORE TRIPLES TEST MEMORY ROW_MEMORY

Ranks the triples of the file TEST with the rows of the last checkpoint of STORE. TRIPLES, a memory-mapped file, holds
the other known triples. Prints one JSON object.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rowmill
from rowmill.kge import ComplEx, KnownTriples, rank
from rowmill.nn import Embedding


def main() -> None:
    """Rank and print the result."""
    store_folder, known_file, test_file, memory, row_memory = sys.argv[1:]
    torch.set_num_threads(2)
    begin = time.perf_counter()
    test, train = np.load(test_file), np.load(known_file, mmap_mode="r")
    known = KnownTriples([train, test], asked=[test])
    known_s = time.perf_counter() - begin
    with rowmill.open(store_folder, memory=memory, row_memory=row_memory, read_only=True) as store:
        entities, relations = (store.open_table(name) for name in ("entities", "relations"))
        counts = [table.num_rows or 0 for table in (entities, relations)]
        model = ComplEx(
            *(
                Embedding(count, table.dim, table=table)
                for count, table in zip(counts, (entities, relations), strict=True)
            )
        )
        ranks = rank(model, test, known, entities=counts[0], reciprocal=counts[1] // 2)
        stats = store.stats()
    print(
        json.dumps(
            {
                **ranks.figures(),
                "triples": len(test),
                "wall_s": time.perf_counter() - begin,
                "known_s": known_s,
                "device_blocks_read": stats["device_blocks_read"],
            }
        )
    )


if __name__ == "__main__":
    main()
