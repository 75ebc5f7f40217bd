"""Ranks of `rowmill train` as processes of the command, with the environment variables of torchrun."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from python.tests.ports import free_port
from python.tests.train.runs import ended, fork, until
from rowmill.distributed._checkpoint.manifest import Manifest

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from multiprocessing.process import BaseProcess
    from pathlib import Path


def start(
    server: ForkServerContext, count: int, of_rank: list[list[str]], folder: Path
) -> list[BaseProcess]:
    """Start ranks, each with its arguments; their output is in `printed-<rank>` of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    return [
        fork(
            server,
            of_rank[rank],
            folder / f"printed-{rank}",
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(count)
    ]


def printed(out: Path, count: int) -> list[str]:
    """The output of every rank so far."""
    return [(out / f"printed-{rank}").read_text() for rank in range(count)]


def run_ranks(server: ForkServerContext, count: int, arguments: list[str], out: Path) -> list[str]:
    """Wait until all ranks have succeeded; returns the output of each."""
    codes = [ended(rank) for rank in start(server, count, [arguments] * count, out)]
    said = printed(out, count)
    assert codes == [0] * count, said
    return said


def kill_second(server: ForkServerContext, arguments: list[str], out: Path) -> str:
    """Start two ranks and kill the second after the second checkpoint; returns the output of the first."""
    ranks = start(server, 2, [arguments] * 2, out)

    def saved() -> bool:
        manifest = Manifest.load(out / "store")
        return manifest is not None and manifest.number >= 2

    until(saved, lambda: all(rank.is_alive() for rank in ranks))
    victim = ranks[1].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    assert [ended(rank) for rank in ranks] == [1, -signal.SIGKILL]
    return printed(out, 2)[0]
