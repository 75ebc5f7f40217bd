"""What a run trains: the part of it that the training loop does not know.

A task brings data, model, rows and figures; the loop in `rowmill.train.run` brings steps, lookahead, checkpoints, curves
and the report. Everything a task does later must follow from its settings, its data, the epoch, the row it is at and
torch's random stream: these are what a checkpoint holds.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rowmill.config.config import Config
from rowmill.config.setting import ConfigError
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import torch
    from torch import Tensor, nn

    from rowmill.config.sections import StoreConfig
    from rowmill.train.rows import RowSide


LOOKAHEAD = (4, 60)
"""Batches that are announced ahead where nobody says how many, at least and at most: more than the store keeps rows for
only wait."""
_WAITING_SHARE = 32
"""Beyond the least they wait in a part of the store's memory, one of so many."""


class Sized(Protocol):
    """What has a size in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        ...


Batch = TypeVar("Batch", bound=Sized)


class Window(Protocol):
    """Figures of the examples trained on since the last point of the curves."""

    rows: int

    def compute(self) -> dict[str, float | None]:
        """The figures by name."""
        ...

    def reset(self) -> None:
        """Begin anew."""
        ...


class Task(Protocol):
    """What is trained; each kind is one module of `rowmill.train`."""

    identity: dict[str, Any]
    """What must not change between the parts of one run."""
    train_rows: int
    """Examples of an epoch."""

    @property
    def model(self) -> nn.Module:
        """What predicts; its `embeddings`, if any, are the rows."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Of the dense half, if there is one."""
        ...

    @property
    def rows(self) -> RowSide:
        """The tables."""
        ...

    @property
    def window(self) -> Window:
        """Figures since the last point of the curves."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch from an example on: the first, or the `stop` that every batch has."""
        ...

    def lookahead(self, batch: Any, *, steps: int) -> None:
        """A batch comes in so many steps: 1 is the next."""
        ...

    def look_up(self, batch: Any) -> Any:
        """The rows of a batch as `loss` takes them: a training get."""
        ...

    def loss(self, batch: Any, rows: Any) -> tuple[Tensor, Any]:
        """The loss before learning from a batch, and what `observe` wants of it; `rows` None: look them up."""
        ...

    def observe(self, batch: Any, predicted: Any) -> None:
        """A batch was learned from: its figures go into the window."""
        ...

    def validates(self, epochs: int) -> bool:
        """Whether figures of the validation part are due after so many epochs."""
        ...

    def validate(self) -> dict[str, float | None]:
        """Figures of the validation part."""
        ...

    def test(self) -> dict[str, float | None]:
        """Figures of the test part."""
        ...

    def about(self) -> dict[str, Any]:
        """Entries of the report that only this task has; those under "run" join the figures there."""
        ...


def check_task(config: Config, *, data: str, models: Iterable[str], what: str) -> Path:
    """Where the data of a task that is not click models is; raises where settings say nothing that it can do.

    Args:
        config: The settings.
        data: What `--data` names.
        models: The kinds of model.
        what: What they are models of.
    """
    if config.data.path is None:
        raise ConfigError(f"data.path is not set: name {data} with --data")
    if config.model.kind not in models:
        raise ConfigError(
            f"model.kind = {config.model.kind!r} is no model of {what}: give --model {' or '.join(models)}"
        )
    if config.train.plain:
        raise ConfigError("train.plain is for click models: drop --plain")
    return config.data.path


def check_flags(config: Config) -> None:
    """Raise where a flag says something that the task of a run would not hear."""
    task, usual = config.train.task, Config()
    flags = {
        "ctr": ("data", ("schema", "train_rows", "ids", "buckets", "min_count")),
        "gnn": ("gnn", ("split", "splits")),
    }
    for of, (section, names) in flags.items():
        for name in names:
            value = getattr(getattr(config, section), name)
            if task != of and value != getattr(getattr(usual, section), name):
                raise ConfigError(
                    f"{section}.{name} applies only to --task {of}; remove it for --task {task}, got {str(value)!r}"
                )


def announced(
    stream: Iterable[Batch], announce: Callable[[Batch, int], None], store: StoreConfig
) -> Iterator[Batch]:
    """Batches, each one announced (the batch, in how many steps) while those before it are worked on.

    They wait until `store.lookahead` came behind them, or, where that is not said, as many as memory allows.
    """
    least, most = LOOKAHEAD if store.lookahead is None else (store.lookahead, store.lookahead)
    room = parse_size(store.memory, name="store.memory") // _WAITING_SHARE
    waiting: deque[Batch] = deque()
    held = 0
    for coming in stream:
        # The first batch of all is read at once; announcing it would only fetch its rows twice.
        if waiting:
            announce(coming, len(waiting) + 1)
        waiting.append(coming)
        held += coming.nbytes
        while len(waiting) > most or (len(waiting) > least and held > room):
            held -= waiting[0].nbytes
            yield waiting.popleft()
    yield from waiting
