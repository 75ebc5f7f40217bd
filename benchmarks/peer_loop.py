"""The product's training loop over the rows of a peer.

A task of the product gets its rows from the peer: `Trainer` brings batches, announces them and steps the dense half as
it does over a store.
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
    """The rows of a task in a peer, as the training loop takes them.

    Attributes:
        dim: Weights of a row; behind them is as much optimizer state, if there is an optimizer.
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
        """The weights of keys, which are distinct and ascend; `step` changes the rows by the gradients they get."""
        rows = torch.from_numpy(self._rows.get(keys).copy())
        if self._optimizer is None:
            return rows
        learned = rows[:, : self.dim].clone().requires_grad_()
        self._read = keys, rows, learned
        return learned

    def step(self) -> None:
        """Update the rows that were read last, and put them back."""
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
        """The peer counts for itself."""
        return RowCounters(looked_up=0, cold=0, stalled_s=0.0, resident_bytes=0)

    def pipeline(self, look_up: Any, in_flight: int) -> None:
        """One step at a time."""
        del look_up, in_flight


def distinct(keys: NDArray[Any]) -> tuple[Keys, Tensor]:
    """The distinct keys, which ascend, and the position of each key among them."""
    found, positions = np.unique(keys.astype(np.uint64, copy=False), return_inverse=True)
    return found, torch.from_numpy(positions)


class PeerLoop:
    """A trainer whose task has its rows in a peer; its steps go on from one call to the next."""

    def __init__(self, rows: PeerRows, task: Any) -> None:
        self._rows = rows
        self._trainer = Trainer(task.config, task)
        self._steps: Iterator[Any] = self._trainer.steps(0)

    def train(self, steps: int) -> int:
        """Train for some steps; the examples that they had."""
        begin, done = self._trainer.state.step, 0
        for batch, _ in islice(self._steps, steps):
            self._trainer.train_step(batch)
            done += len(batch)
        assert self._trainer.state.step == begin + steps, "the data is too short"
        return done

    def round(self, variant: str, number: int, *, steps: int, lead: int) -> dict[str, Any]:
        """Train `lead` steps, and measure those behind; what the engine does in the background then counts for none."""
        self.train(lead)
        cell = measure(variant, number, self._rows, lambda: self.train(steps), steps=steps)
        self._rows.settle()
        return cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which peers run beside the store, and how long: of every benchmark out of core."""
    parser.add_argument(
        "--peers",
        type=kinds_of,
        default=[],
        metavar=",".join(KINDS),
        help="the same loop over these engines (tools/peers.sh says what they need)",
    )
    parser.add_argument("--rounds", type=int, help="rounds that count (5, quick: 3)")
    parser.add_argument(
        "--minutes", type=float, help="rounds end then, stationary or not (30, quick: 2)"
    )


def patience_of(arguments: argparse.Namespace) -> Patience:
    """When rounds end, by the arguments."""
    rounds = arguments.rounds or (3 if arguments.quick else 5)
    minutes = 2.0 if arguments.quick else 30.0
    return Patience(rounds, minutes=minutes if arguments.minutes is None else arguments.minutes)


@contextmanager
def opened_peers(
    program: Path, kinds: list[str], folder: Path, **options: Any
) -> Generator[dict[str, PeerRows]]:
    """Engines without rows, by name; options are those of `peer_rows`."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(peer_rows(program, kind, folder, **options)) for kind in kinds
        }
