"""The highest resident memory of a node that is filled, asked and filled again meanwhile."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.storage_node.node import ROWMILL, WIRE_MIB, serving
from benchmarks.storage_node.part import Part
from benchmarks.storage_node.reader_process import reading
from benchmarks.storage_node.settings import BATCH, MIB

_HOSTS, _SENDERS = 3, 8


def memory(part: Part) -> None:
    """A new node per round."""
    store = part.stores.dense(part.settings.rows)
    for number in range(part.settings.rounds):
        part.cells.measure(lambda: _measure(part, store), part="memory", round=number)


def _measure(part: Part, store: Path) -> dict[str, Any]:
    settings = part.settings
    folder = part.folder / "memory"
    shutil.rmtree(folder, ignore_errors=True)
    subsystem = f'filled = true\nmemory = "{settings.memory_mib}MiB"'
    with serving(folder, subsystem) as node, ExitStack() as stack:
        begun = node.most_resident_bytes()
        fill = [*ROWMILL, "storage", "fill", str(store), node.url]
        subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)
        readers = [
            stack.enter_context(
                reading(node.url, rows=settings.rows, bags=BATCH, seed=part.seed + host)
            )
            for host in range(_HOSTS)
        ]
        for reader in readers:
            reader.begin("pool", seconds=settings.seconds, threads=_SENDERS)
        subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)
        rows = sum(reader.result()["rows"] for reader in readers)
        # Once more, now on the rows of the second fill.
        for reader in readers:
            reader.begin("pool", seconds=settings.seconds, threads=_SENDERS)
        rows += sum(reader.result()["rows"] for reader in readers)
        most = node.most_resident_bytes()
    shutil.rmtree(folder)
    return {
        "begin_bytes": begun,
        "most_bytes": most,
        "budget_bytes": (settings.memory_mib + WIRE_MIB) * MIB,
        "rows": rows,
    }
