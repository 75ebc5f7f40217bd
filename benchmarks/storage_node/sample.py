"""How long one sample of RM1 takes, all rows in memory."""

from benchmarks.storage_node.node import serving
from benchmarks.storage_node.part import Part
from benchmarks.storage_node.reader_process import reading
from benchmarks.storage_node.settings import MIB
from benchmarks.storage_node.stores import row_bytes


def sample(part: Part) -> None:
    """Requests one after the other; the node has its default threads."""
    settings = part.settings
    memory = 2 * row_bytes(settings.rows) + 64 * MIB
    subsystem = f'store = "{part.stores.dense(settings.rows)}"\nmemory = "{memory // MIB}MiB"'
    with (
        serving(part.folder / "sample", subsystem) as node,
        reading(node.url, rows=settings.rows, bags=1, seed=part.seed) as reader,
    ):
        reader.call("warm")
        reader.call("times", count=settings.samples // 10 + 1)
        for number in range(settings.rounds):
            part.cells.measure(
                lambda: reader.call("times", count=settings.samples), part="sample", round=number
            )
