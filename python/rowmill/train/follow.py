"""Training on files as they arrive in a folder: `rowmill train --data FOLDER --follow`.

Every file is one part of the data. All its rows are trained on once, and each batch is predicted before it is trained on, so the
metrics of the training curves are those of predictions for unseen rows. The dense learning rate is constant.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from rowmill.errors import DataError
from rowmill.train.arrivals import Arrivals, TakenFile
from rowmill.train.ending import ended_by_signals
from rowmill.train.identity import CHECKSUM, DATA_ROWS
from rowmill.train.parts import numbered
from rowmill.train.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rowmill.train.ending import Ending
    from rowmill.train.parts import Part
    from rowmill.train.progress import RunProgress
    from rowmill.train.run import Trainer
    from rowmill.train.state import RunState


class FollowingTask(Task, Protocol):
    """A task that trains on one file after the other."""

    def takes(self, name: str) -> bool:
        """Whether a file of this name holds data."""
        ...

    def take(self, file: Path) -> None:
        """Train on this file from now on: `train_rows`, `identity` and `batches` are of it."""
        ...

    def begins_with(self, parts: Sequence[Part]) -> int | None:
        """The number, from 1, of the part with whose rows the file begins; None if there is none."""
        ...

    def ending(self) -> Ending:
        """The end of this run, on which all of its processes agree."""
        ...


def follow(trainer: Trainer, progress: RunProgress, console: Console) -> dict[str, float | None]:
    """Train on the files of the folder until a signal, or until the file of `data.until` is done.

    Returns:
        The metrics of all rows of the folder, each predicted before it was trained on.

    Raises:
        DataError: A file that was taken has changed, or one has arrived that sorts before the last one.
    """
    data, state, task = trainer.config.data, trainer.state, cast("FollowingTask", trainer.task)
    assert data.path is not None
    folder = data.path.resolve()
    files = [part.file for part in state.parts if part.file and Path(part.data).parent == folder]
    files += [state.file] if state.file else []
    taken = [TakenFile(**file) for file in files]
    arrivals = Arrivals(folder, task.takes, taken, data.until)
    ending = task.ending()
    with ended_by_signals(ending):
        file = None
        if state.file is not None:
            file = taken[-1]
            ending.first(partial(arrivals.check, file))
            _go_on(trainer, task, folder / file.name)
        while file is not None or (file := arrivals.next(ending, trainer.save_steps)) is not None:
            if state.file is None:
                _begin(trainer, task, folder / file.name, file)
            if not trainer.train_part(progress, ending):
                break
            ending.first(partial(arrivals.check, file))
            points = [point for point in state.curve if point["step"] > state.steps_before]
            metrics = averaged(points, state.examples_before)
            state.end_part(trainer.run.identity, metrics)
            console.print(
                _line(file.name, state, metrics), highlight=False, markup=False, soft_wrap=True
            )
            file = None
        progress.flush()
        trainer.save_steps()
    first = next((n for n, part in enumerate(state.parts) if part.file), len(state.parts))
    before = state.parts[first - 1].examples if first else 0
    return averaged([point for point in state.curve if point["rows"] > before], before)


def averaged(points: Sequence[dict[str, Any]], before: int) -> dict[str, float | None]:
    """Means of the metrics of the curves, weighted by the rows of each point.

    Logloss is exact; the AUC is the mean of those within the points.

    Args:
        points: Points that follow each other.
        before: Rows trained on before the first of them.
    """
    metrics: dict[str, float | None] = {}
    for name in ("auc", "logloss", "ne"):
        total = weight = 0.0
        since = before
        for point in points:
            rows, since = point["rows"] - since, point["rows"]
            if point[name] is not None:
                total, weight = total + rows * point[name], weight + rows
        metrics[name] = total / weight if weight else None
    return metrics


def _begin(trainer: Trainer, task: FollowingTask, path: Path, file: TakenFile) -> None:
    """Begin with a new file."""
    task.take(path)
    parts = trainer.state.parts
    if (number := numbered(parts, task.identity)) is not None:
        raise DataError(
            f"{path} has the rows of part {number} of the data that this run was trained on, "
            f"{parts[number - 1].data or 'its first data'}: move it away"
        )
    if (number := task.begins_with(parts)) is not None:
        part = parts[number - 1]
        raise DataError(
            f"{path} ({task.train_rows:,} rows) begins with the rows of {part.data or 'the first data of the run'} "
            f"({part.rows:,} rows), which were trained on: leave only the new rows in it"
        )
    trainer.run.identity = task.identity
    # A vocabulary grows with each file.
    trainer.run.files = trainer.files()
    trainer.state.data, trainer.state.file = str(path), vars(file)


def _go_on(trainer: Trainer, task: FollowingTask, path: Path) -> None:
    """Go on with the file at the position of the checkpoint."""
    before = trainer.run.identity
    task.take(path)
    if any(task.identity[name] != before[name] for name in (DATA_ROWS, CHECKSUM)):
        raise DataError(f"{path} has other rows than before: put the old file back")


def _line(name: str, state: RunState, metrics: dict[str, float | None]) -> str:
    said = ", ".join(
        f"{key} {'-' if value is None else format(value, '.4f')}" for key, value in metrics.items()
    )
    rows = state.examples_before - (state.parts[-2].examples if len(state.parts) > 1 else 0)
    return f"{name}: {rows:,} rows, {said}, each predicted before training"
