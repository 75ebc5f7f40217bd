"""The product's own loop, in pieces that a peer's are compared with."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rowmill.train.run import Trainer


def own(trainer: Trainer, *, batch: int, batches: int) -> Callable[[], int]:
    """So many batches of the loop, and the examples that they had; every call goes on behind the one before."""

    def endless() -> Iterator[tuple[Any, Any]]:
        while True:
            # The last batch of an epoch may be smaller: the peers leave theirs out, too.
            for examples, rows in trainer.steps(0):
                if len(examples) == batch:
                    yield examples, rows
            trainer.state.epoch += 1

    steps = endless()

    def work() -> int:
        for examples, rows in islice(steps, batches):
            trainer.train_step(examples, rows)
        return batches * batch

    return work
