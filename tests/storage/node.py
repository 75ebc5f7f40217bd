"""A `rowmill storage serve` on loopback that tests kill and start again."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BLOCK_BYTES = 4096


class Node:
    """A node with one subsystem. It keeps its port, its name and its data when it is started again."""

    def __init__(self, folder: Path, namespace: str, access: str = 'any_host = "write"') -> None:
        self.port = 0
        """0: any free port, which the first start chooses."""
        self.name = ""
        """NQN of the subsystem."""
        self._folder = folder
        self._namespace = namespace
        self._access = access
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the node, and wait until it listens."""
        config = self._folder / "node.toml"
        config.write_text(f"""
            listen = "127.0.0.1:{self.port}"
            metrics = "127.0.0.1:0"
            log_level = "warn"
            [[subsystem]]
            folder = "disk"
            {self._namespace}
            {self._access}
        """)
        command = [sys.executable, "-m", "rowmill", "storage", "serve", "--config", config]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the node did not start"
        # nvme+tcp://127.0.0.1:PORT/NQN
        address, _, self.name = json.loads(line)["ready"][0].rpartition("/")
        self.port = int(address.rpartition(":")[2])

    def kill(self) -> None:
        """End the node as a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def content(self, first: int, count: int) -> bytes:
        """What the node's disk has in `count` blocks from block `first` on."""
        with (self._folder / "disk/blocks").open("rb") as file:
            file.seek(first * BLOCK_BYTES)
            content = file.read(count * BLOCK_BYTES)
        return content.ljust(count * BLOCK_BYTES, b"\0")


@contextmanager
def serving_blocks(folder: Path, *, blocks: int, content: bytes = b"") -> Generator[Node]:
    """A node with a namespace of blocks that start with `content`, in an empty folder."""
    (folder / "disk").mkdir()
    (folder / "disk/blocks").write_bytes(content)
    with _running(Node(folder, f'blocks = "{blocks * BLOCK_BYTES}"')) as node:
        yield node


@contextmanager
def serving_rows(folder: Path, *, store: Path) -> Generator[Node]:
    """A node with a namespace of the rows of a store."""
    with _running(Node(folder, f'store = "{store}"\nmemory = "32MiB"')) as node:
        yield node


@contextmanager
def serving_filled_rows(folder: Path, *, access: str) -> Generator[Node]:
    """A node with a namespace of rows that no host has filled yet."""
    with _running(Node(folder, 'filled = true\nmemory = "64MiB"', access)) as node:
        yield node


@contextmanager
def _running(node: Node) -> Generator[Node]:
    node.start()
    try:
        yield node
    finally:
        node.kill()
