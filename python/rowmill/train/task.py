"""The interface between a task and the training loop.

A task provides data, model, rows and metrics. The loop in `rowmill.train.run` provides steps, lookahead, checkpoints,
curves and the report. A task may depend only on what a checkpoint holds: settings, data, epoch, position in the epoch,
and torch's random stream.
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
    from rowmill.train.state import Change


LOOKAHEAD = (4, 60)
"""Default number of batches to prefetch: at least and at most. The store keeps no rows for batches further ahead."""
_WAITING_SHARE = 32
"""Waiting batches beyond the least number may take 1 / 32 of the store's memory."""


class Sized(Protocol):
    """A batch with a known size in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes of the batch's tensors."""
        ...


Batch = TypeVar("Batch", bound=Sized)


class Window(Protocol):
    """Metrics over the examples since the last point of the curves."""

    rows: int

    def compute(self) -> dict[str, float | None]:
        """The metrics by name."""
        ...

    def reset(self) -> None:
        """Forget all examples."""
        ...


class Task(Protocol):
    """A kind of training: `ctr`, `kge` or `gnn`."""

    identity: dict[str, Any]
    """Settings and properties of the data that must be equal when a run resumes."""
    train_rows: int
    """Number of examples per epoch."""

    @property
    def change(self) -> Change | None:
        """What it changes of the dense half of the run that is continued, if anything."""
        ...

    @property
    def config(self) -> Config:
        """The settings, with the folder of the run as `train.out`."""
        ...

    @property
    def model(self) -> nn.Module:
        """The model; its `embeddings`, if it has any, are the rows."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the dense half; None without one."""
        ...

    @property
    def rows(self) -> RowSide:
        """The rows of the model."""
        ...

    @property
    def window(self) -> Window:
        """Metrics since the last point of the curves."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch from example `start` on: 0, or the `stop` of a batch."""
        ...

    def lookahead(self, batch: Any, *, steps: int) -> None:
        """Prefetch the rows of a batch that will be trained on in `steps` steps; 1 is the next step."""
        ...

    def look_up(self, batch: Any) -> Any:
        """The rows of a batch for `loss`, by a training read."""
        ...

    def loss(self, batch: Any, rows: Any) -> tuple[Tensor, Any]:
        """The loss of a batch, and the predictions for `observe`; with `rows` None, look up the rows first."""
        ...

    def observe(self, batch: Any, predicted: Any) -> None:
        """Add the predictions of a batch to the window, after the update."""
        ...

    def validates(self, epochs: int) -> bool:
        """Whether to validate after this number of epochs."""
        ...

    def validate(self) -> dict[str, float | None]:
        """Metrics on the validation split."""
        ...

    def test(self) -> dict[str, float | None]:
        """Metrics on the test split."""
        ...

    def described(self) -> dict[str, Any]:
        """What export and prediction need beside the settings, as JSON or text files by role (see `rowmill.train.run_files`)."""
        ...

    def about(self) -> dict[str, Any]:
        """Entries of the report that only this task has; entries under "run" are merged into the report's "run"."""
        ...


def check_task(config: Config, *, data: str, models: Iterable[str], what: str) -> Path:
    """The data path of a task other than `ctr`; raises `ConfigError` for settings that the task does not support.

    Args:
        config: The settings.
        data: Description of the expected data, for messages.
        models: Names of the task's models.
        what: What these models are for, for messages.
    """
    if config.data.path is None:
        raise ConfigError(f"data.path is not set: pass {data} with --data")
    if config.model.kind not in models:
        raise ConfigError(
            f"model.kind must be {' or '.join(models)} for {what}, got {config.model.kind!r}"
        )
    if config.train.plain:
        raise ConfigError(
            f"train.plain applies only to --task ctr; remove it for --task {config.train.task}"
        )
    return config.data.path


def check_flags(config: Config) -> None:
    """Raise `ConfigError` if a setting is given that the task ignores."""
    task, usual = config.train.task, Config()
    flags = {
        "ctr": ("data", ("schema", "train_rows", "follow", "until", "ids", "buckets", "min_count")),
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
    """Yield the batches of `stream`, and call `announce(batch, steps)` for each one `steps` steps ahead.

    A batch waits until `store.lookahead` later ones are read. Without this setting the number is between
    `LOOKAHEAD[0]` and `LOOKAHEAD[1]`, as memory allows.
    """
    least, most = LOOKAHEAD if store.lookahead is None else (store.lookahead, store.lookahead)
    room = parse_size(store.memory, name="store.memory") // _WAITING_SHARE
    waiting: deque[Batch] = deque()
    held = 0
    for coming in stream:
        # The first batch is looked up at once: announcing it would fetch its rows twice.
        if waiting:
            announce(coming, len(waiting) + 1)
        waiting.append(coming)
        held += coming.nbytes
        while len(waiting) > most or (len(waiting) > least and held > room):
            held -= waiting[0].nbytes
            yield waiting.popleft()
    yield from waiting
