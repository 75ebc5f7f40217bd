"""The product's training loop, with rows in another engine (a peer).

`Trainer` makes and announces batches and updates the dense layers as it does with a store; only the rows of the task
come from the peer.
"""

import argparse
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peer_rows import KINDS, PeerRows, kinds_of, measure, peer_rows
from benchmarks.rounds import Patience
from rowmill.optim import Adagrad
from rowmill.train.rows import RowCounters
from rowmill.train.run import Trainer

Keys = NDArray[np.uint64]


class PeerSide:
    """The rows of a task in a peer, with the interface that the training loop needs.

    Attributes:
        dim: Weights per row. With an optimizer, as many values of its state follow.
    """

    def __init__(self, rows: PeerRows, dim: int, optimizer: Adagrad | None) -> None:
        self.dim = dim
        self._rows = rows
        self._optimizer = optimizer
        self._read: tuple[Keys, Tensor, Tensor] | None = None

    def announce(self, keys: Keys, *, steps: int) -> None:
        """Announce keys that will be read `steps` steps from now; 1 is the next step."""
        self._rows.announce(keys, steps)

    def read(self, keys: Keys) -> Tensor:
        """The weights of distinct, ascending keys, as a tensor. `step` updates the rows with the tensor's gradients."""
        rows = torch.from_numpy(self._rows.get(keys).copy())
        if self._optimizer is None:
            return rows
        learned = rows[:, : self.dim].clone().requires_grad_()
        self._read = keys, rows, learned
        return learned

    def step(self) -> None:
        """Update the rows of the last `read`, and put them back."""
        if self._optimizer is None or self._read is None:
            return
        keys, rows, learned = self._read
        self._read = None
        assert learned.grad is not None
        weights, squares = rows[:, : self.dim], rows[:, self.dim :]
        squares.addcmul_(learned.grad, learned.grad)
        divisors = squares.sqrt().add_(self._optimizer.eps)
        weights.addcdiv_(learned.grad, divisors, value=-self._optimizer.lr)
        self._rows.put(keys, rows.numpy())

    def counters(self) -> RowCounters:
        """Zeros: peers have their own counters."""
        return RowCounters(looked_up=0, cold=0, stalled_s=0.0, resident_bytes=0)

    def pipeline(self, look_up: Any, in_flight: int) -> None:
        """None: a peer runs one step at a time."""
        del look_up, in_flight


def distinct(keys: NDArray[Any]) -> tuple[Keys, Tensor]:
    """The distinct keys in ascending order, and the position of each key among them."""
    found, positions = np.unique(keys.astype(np.uint64, copy=False), return_inverse=True)
    return found, torch.from_numpy(positions)


class PeerLoop:
    """A trainer whose task has its rows in a peer. Each call continues after the steps of the call before."""

    def __init__(self, rows: PeerRows, task: Any) -> None:
        self._rows = rows
        self._trainer = Trainer(task.config, task)
        self._steps: Iterator[Any] = self._trainer.steps(0)

    def train(self, steps: int) -> int:
        """Train for some steps; returns their number of examples."""
        begin, done = self._trainer.state.step, 0
        for batch, _ in islice(self._steps, steps):
            self._trainer.train_step(batch)
            done += len(batch)
        assert self._trainer.state.step == begin + steps, "the data is too short"
        return done

    def round(self, variant: str, number: int, *, steps: int, lead: int) -> dict[str, Any]:
        """Train `lead` steps that are not measured, then measure `steps`, so that earlier background work does not count."""
        self.train(lead)
        cell = measure(variant, number, self._rows, lambda: self.train(steps), steps=steps)
        self._rows.settle()
        return cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of all out-of-core benchmarks: which peers run beside the store, and for how long."""
    parser.add_argument(
        "--peers",
        type=kinds_of,
        default=[],
        metavar=",".join(KINDS),
        help="also run the loop with these engines (tools/peers.sh lists what they need)",
    )
    parser.add_argument(
        "--rounds", type=int, help="number of rounds that count (default 5, quick: 3)"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="longest time for rounds to become stationary (default 30, quick: 2)",
    )


def patience_of(arguments: argparse.Namespace) -> Patience:
    """When to end rounds, according to the arguments."""
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    minutes = 2.0 if arguments.quick else 30.0
    return Patience(rounds, minutes=minutes if arguments.minutes is None else arguments.minutes)


@contextmanager
def opened_peers(
    program: Path, kinds: list[str], folder: Path, **options: Any
) -> Generator[dict[str, PeerRows]]:
    """Start empty engines; a dictionary by name. `options` are passed to `peer_rows`."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(peer_rows(program, kind, folder, **options)) for kind in kinds
        }
