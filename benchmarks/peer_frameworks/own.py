"""rowmill's training loop in pieces of a fixed number of batches, to compare with a peer's loop."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rowmill.train.run import Trainer


def own(trainer: Trainer, *, batch: int, batches: int) -> Callable[[], int]:
    """A function that trains `batches` batches and returns their number of examples; each call continues the last."""

    def endless() -> Iterator[tuple[Any, Any]]:
        while True:
            # Skip the last batch of an epoch if it is smaller, as the peers do.
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
