"""Processes of `rowmill serve`, and the bundles that they serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import rowmill
from python.tests.partition.models import click_model, stacked
from rowmill.partition.bundle import Bundle
from rowmill.partition.export import export

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_S = 120.0
"""Longest wait for the start or end of a worker. Importing torch alone takes some seconds on a busy machine."""


RAGGED_PARTS = ("words_values", "words_offsets", "words_weights")


class Ragged(nn.Module):
    """The two best of three scores of a bag of words of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 4, mode="sum", include_last_offset=True)
        self.layer = nn.Linear(6, 3)

    def forward(self, words: dict[str, Tensor], dense: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.words(words["values"], words["offsets"], words["weights"])
        return self.layer(torch.cat([pooled, dense], dim=1)).softmax(1).topk(2, dim=1)


def ragged_call(rows: int) -> tuple[Any, ...]:
    lengths = torch.arange(rows) % 4
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(offsets[-1])
    words = {
        "values": torch.arange(count) % 20,
        "offsets": offsets,
        "weights": torch.rand(count),
    }
    return words, torch.rand(rows, 2)


class Rounds(nn.Module):
    """Has an operator that plans lack, so its CPU half is a program of torch."""

    def __init__(self, store: rowmill.Store) -> None:
        super().__init__()
        self.rows = stacked(store, [0])
        self.layer = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.layer(self.rows(torch.floor_divide(ids, 2)).squeeze(1)).squeeze(1)


@dataclass
class Worker:
    """A running `rowmill serve`."""

    process: subprocess.Popen[str]
    addresses: dict[str, Any]
    log: list[str] = field(default_factory=list[str])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)


def stop(process: subprocess.Popen[Any]) -> None:
    """Stop a process that was started here. While its threads are stopping, one of them could still answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


@contextmanager
def worker(
    *arguments: str | Path,
    wait: bool = True,
    program: str = "rowmill",
    python: str = sys.executable,
) -> Iterator[Worker]:
    """Start a worker; with `wait`, until it is ready. `program` is a module with the command line of `rowmill`.

    The gRPC port is a free one unless `arguments` name one.
    """
    process = subprocess.Popen(
        [python, "-m", program, "serve", "--grpc-port", "0", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    found = Worker(process, {})
    assert process.stderr is not None
    assert process.stdout is not None
    reader = threading.Thread(target=found.log.extend, args=(process.stderr,))
    reader.start()
    watchdog = threading.Timer(START_S, process.kill)
    try:
        if wait:
            watchdog.start()
            line = process.stdout.readline()
            watchdog.cancel()
            assert line, f"the worker ended: {found.log}"
            found.addresses = json.loads(line)
        yield found
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


@dataclass(frozen=True)
class Bundles:
    """Bundles of three models, and requests with the answers of plain torch."""

    folder: Path

    NAMES = ("dlrm", "ragged", "rounds")

    @property
    def paths(self) -> list[Path]:
        return [self.folder / name for name in self.NAMES]

    def requests(self, name: str) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """The examples of a bundle, by the names of its signature."""
        with Bundle.open(self.folder / name) as bundle:
            return [
                (inputs, dict(zip(bundle.signature["outputs"], answers, strict=True)))
                for inputs, answers in bundle.examples()
            ]

    def answer(self, name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The answer of plain torch to a request."""
        with Bundle.open(self.folder / name) as bundle:
            return dict(zip(bundle.signature["outputs"], bundle.run(inputs), strict=True))


def make_bundles(folder: Path) -> Bundles:
    """Export the three models."""
    with rowmill.open(folder / "store", memory="32MiB") as store:
        model = click_model("dlrm", lambda columns: stacked(store, columns))
        export(model.module, [model.call(5), model.call(3)], out=folder / "dlrm")
    with rowmill.open(folder / "other", memory="32MiB") as store:
        torch.manual_seed(2)
        ids = torch.randint(0, 20, (6, 1))
        said = export(Rounds(store), [(ids,)], out=folder / "rounds")
        assert said != (), "its CPU half is a program of torch"
    torch.manual_seed(3)
    said = export(
        Ragged(), [ragged_call(6), ragged_call(9)], out=folder / "ragged", user=RAGGED_PARTS
    )
    assert said == ()
    return Bundles(folder)
