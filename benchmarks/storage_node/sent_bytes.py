"""Bytes that a host and a node send each other for one request: pooled, as rows, and as blocks."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.storage_node.node import Node, serving
from benchmarks.storage_node.part import Part
from benchmarks.storage_node.reader_process import reading
from benchmarks.storage_node.relay import relayed
from benchmarks.storage_node.settings import BATCH, BYTES_ROWS
from benchmarks.storage_node.shape import distinct_blocks, distinct_rows, draw
from benchmarks.storage_node.stores import FIRST_LONG_ID, row_bytes


def sent_bytes(part: Part) -> None:
    """One request per round, each with other ids, by way of a relay that counts."""
    program = common.cargo_program(
        "read_blocks", ["-p", "rowmill-host", "--example", "read_blocks"]
    )
    for number in range(part.settings.rounds):
        part.cells.measure(
            lambda number=number: _measure(part, program, number), part="bytes", round=number
        )


def _measure(part: Part, program: Path, number: int) -> dict[str, Any]:
    seed = part.seed * 1000 + number
    rows = f'store = "{part.stores.hashed()}"'
    # The reader draws the same ids first.
    lookup = draw(np.random.default_rng(seed), rows=BYTES_ROWS, bags=BATCH, first=FIRST_LONG_ID)
    with (
        serving(part.folder / "bytes-rows", rows) as node,
        relayed(node.port) as relay,
        reading(
            node.through(relay.port), rows=BYTES_ROWS, bags=BATCH, seed=seed, first=FIRST_LONG_ID
        ) as reader,
    ):
        before, commands = relay.sent, _commands(node)
        asked = reader.call("once", number=0)["rows"]
        pooled, commands = relay.sent - before, _commands(node) - commands
        before = relay.sent
        fetched = reader.call("fetch", number=0)["rows"]
        as_rows = relay.sent - before
    blocks = distinct_blocks(lookup, rows=BYTES_ROWS, first=FIRST_LONG_ID)
    assert asked == lookup.rows
    assert fetched == sum(map(len, distinct_rows(lookup)))
    return {
        "lookups": asked,
        "distinct_rows": fetched,
        "distinct_blocks": len(blocks),
        "pooled_commands": commands,
        "pooled_bytes": pooled,
        "rows_bytes": as_rows,
        "blocks_bytes": _read_blocks(part, program, blocks),
    }


def _commands(node: Node) -> int:
    names = ("rowmill_storage_stages_total", "rowmill_storage_fetches_total")
    return int(sum(map(node.metric, names)))


def _read_blocks(part: Part, program: Path, blocks: np.ndarray) -> int:
    """Bytes of reads of these blocks, less those of a connection that reads none."""
    # Unwritten blocks are read as zeros, which take as many bytes on the wire as any data.
    size = f'blocks = "{row_bytes(BYTES_ROWS) // (1 << 20) + 1}MiB"'
    sent: list[int] = []
    with serving(part.folder / "bytes-blocks", size) as node:
        for numbers in (blocks[:0], blocks):
            with relayed(node.port) as relay:
                subprocess.run(
                    [program, node.through(relay.port)],
                    input=" ".join(map(str, numbers)),
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                sent.append(relay.sent)
    return sent[1] - sent[0]
