"""Rows pooled per second: a node on one core with a host on another, and the store itself on the node's core."""

from contextlib import ExitStack

from benchmarks.serving.part import rotated
from benchmarks.storage_node.node import THREADS_1, pinned, serving
from benchmarks.storage_node.part import Part, two_cores
from benchmarks.storage_node.reader_process import ReaderProcess, reading
from benchmarks.storage_node.settings import BATCH, MIB
from benchmarks.storage_node.stores import row_bytes

_SENDERS = 4
"""Requests that a host has in flight, so that the node never waits for it."""


def pooling(part: Part) -> None:
    """Rounds of the node and of the store, all rows in memory."""
    settings = part.settings
    core, other = two_cores()
    store = part.stores.dense(settings.rows)
    memory = 2 * row_bytes(settings.rows) + 64 * MIB
    subsystem = f'store = "{store}"\nmemory = "{memory // MIB}MiB"'
    shape = {"rows": settings.rows, "bags": BATCH, "seed": part.seed}
    with ExitStack() as stack:
        node = stack.enter_context(
            serving(part.folder / "pooling", subsystem, settings=THREADS_1, inside=pinned(core))
        )
        readers = {
            "node": stack.enter_context(reading(node.url, **shape, inside=pinned(other))),
            "store": stack.enter_context(
                reading(store, **shape, memory=memory, inside=pinned(core))
            ),
        }
        for reader in readers.values():
            reader.call("warm")
        _check_bits(readers)

        def work(way: str) -> dict[str, float]:
            cpu = node.cpu_s()
            senders = _SENDERS if way == "node" else 1
            found = readers[way].call("pool", seconds=settings.seconds, threads=senders)
            return {**found, "node_cpu_s": node.cpu_s() - cpu}

        for number in range(settings.rounds):
            for way in rotated(list(readers), number):
                part.cells.measure(lambda way=way: work(way), part="pooling", way=way, round=number)


def _check_bits(readers: dict[str, ReaderProcess]) -> None:
    digests = {way: reader.call("once", number=0)["digest"] for way, reader in readers.items()}
    if len(set(digests.values())) > 1:
        raise RuntimeError(f"node and store pool to different bits: {digests}")
