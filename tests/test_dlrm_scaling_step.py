"""The order of events in a step: which messages are in flight during which work.

Overlap depends on the order in which autograd runs the backward nodes. In another order, results would be the same, but no
message would be hidden.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.dlrm_scaling.random_batch import make_batch
from benchmarks.dlrm_scaling.rank import open_rows, open_store
from benchmarks.dlrm_scaling.settings import Settings
from benchmarks.dlrm_scaling.step import Trainer
from benchmarks.dlrm_scaling.timeline import Timeline
from rowmill.distributed import Ranks

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from benchmarks.dlrm_scaling.step import Comm


class Events(Timeline):
    """A timeline that records events."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        self.seen.append(name)
        with super().phase(name):
            yield

    def switch(self, name: str) -> None:
        self.seen.append(name)
        super().switch(name)

    def begun(self, leg: str, work: Any) -> None:
        self.seen.append(f"send {leg}")
        super().begun(leg, work)

    @contextmanager
    def waiting(self, leg: str, work: object = None) -> Generator[None]:
        self.seen.append(f"wait {leg}")
        with super().waiting(leg, work):
            yield


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield Ranks()
    dist.destroy_process_group()


def events(ranks: Ranks, folder: Path, comm: Comm) -> list[str]:
    """The events of the second step of three."""
    settings = Settings(config="mlperf", scale=0.001, comm=comm)
    shape, line = settings.shape, Events()
    whole = slice(settings.samples)
    batches = [
        make_batch(shape, "zipf", samples=settings.samples, part=whole, seed=seed)
        for seed in range(3)
    ]
    with open_store(settings, shape, folder, threads=1) as store:
        trainer = Trainer(
            shape,
            open_rows(settings, shape, store, ranks, batches),
            comm=comm,
            precision="fp32",
            samples=settings.samples,
            device=torch.device("cpu"),
            timeline=line,
        )
        trainer.step(batches[0], batches[1])
        line.seen.clear()
        trainer.step(batches[1], batches[2])
        buckets = len(trainer.buckets.buckets)
    assert buckets > 2
    assert line.seen.count("send allreduce") == buckets
    return line.seen


ASKING = ("lookup", "send counts", "wait counts", "send keys", "wait keys")
READING = ("send counts", "send rows")


def test_blocking_waits_for_each_message_where_it_begins(ranks: Ranks, tmp_path: Path) -> None:
    seen = events(ranks, tmp_path / "store", "blocking")
    pairs = ["send allreduce", "wait allreduce"] * seen.count("send allreduce")
    assert seen == [
        *ASKING,
        *READING,
        *("lookup", "wait rows", "wait counts"),
        *("bottom MLP", "interaction", "top MLP"),
        *("top MLP backward", "interaction backward", "bottom MLP backward"),
        *("lookup backward", "send gradients", "bottom MLP backward"),
        *("lookup backward", "wait gradients"),
        *("optimizer", *pairs),
    ]


def test_overlap_sends_rows_and_gradients_during_the_layers(ranks: Ranks, tmp_path: Path) -> None:
    seen = events(ranks, tmp_path / "store", "overlap")
    reduced = [event for event in seen if event != "send allreduce"]
    buckets = len(seen) - len(reduced)
    assert reduced == [
        # The rows have been in flight since the step before.
        *("bottom MLP", "lookup", "wait rows", "wait counts"),
        *("interaction", "top MLP"),
        *("top MLP backward", "interaction backward", "bottom MLP backward"),
        *("lookup backward", "send gradients", "bottom MLP backward"),
        # The ids of the next batch are sent before the wait for this batch's gradients, its rows after their update.
        *ASKING,
        *("lookup backward", "wait gradients"),
        *("lookup", *READING),
        *("optimizer", "wait allreduce"),
    ]
    # Every bucket is sent before anything is updated: those of the top MLP during its own backward pass, the last one
    # after the row gradients, with the bottom MLP.
    after_top, after_send = seen.index("interaction backward"), seen.index("send gradients")
    last_wait = seen.index("wait gradients")
    assert seen[:after_top].count("send allreduce") == buckets - 1
    assert seen[after_send:last_wait].count("send allreduce") == 1
