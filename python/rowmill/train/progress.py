"""Progress of a run: a progress bar or lines on the console, and TensorBoard events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from rowmill._extras import extra

with extra("train"):
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from torch.utils.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from rich.console import Console

    from rowmill.train.report.figures import Figures


class RunProgress:
    """Shows each point of the training curves: on a terminal in a progress bar, elsewhere as lines.

    Lines appear after each tenth of the run and after each validation.

    Args:
        console: Where to print.
        events: Folder for TensorBoard events; None writes none.
        figures: Names and formats of the metrics of the task.
        total: Examples to train on, over all epochs; None if it is not known. Then no lines are printed.
        done: Examples that earlier parts of the run trained on.
        curve: Points that a resumed run already has. TensorBoard events from the last of these on are purged, because
            the resumed run writes them again.
        tested: Whether the run was tested at the last of these points: then only later events are purged.
    """

    def __init__(
        self,
        console: Console,
        events: Path | None,
        *,
        figures: Figures,
        total: int | None,
        done: int,
        curve: Sequence[dict[str, Any]] = (),
        tested: bool = False,
    ) -> None:
        self._console = console
        self._figures = figures
        self._total = total
        self._next_line = self._begun = done
        last = curve[-1] if curve else None
        self._events = None
        if events is not None:
            purge_step = 0 if last is None else int(last["step"]) + tested
            self._events = SummaryWriter(str(events), purge_step=purge_step)
        if last is not None and not tested:
            self._record(last)
        self._progress = Progress(
            TextColumn("[bold]train"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn(figures.unit + "  {task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("train", total=total, completed=done, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._events is not None:
            self._events.close()

    def show(self, point: dict[str, Any], done: int) -> None:
        """Show a new point of the curves, `done` examples after the start."""
        figures = describe(point, self._figures)
        self._progress.update(self._task, completed=done, figures=figures)
        self._record(point)
        validated = any(name.startswith("valid_") for name in point)
        if self._console.is_terminal or self._total is None:
            return
        if validated or done >= self._next_line:
            self._console.print(
                f"{done:>12,} of {self._total:,} {self._figures.unit}  {figures}",
                highlight=False,
                soft_wrap=True,
            )
            if not validated:
                self._next_line = done + (self._total - self._begun) // 10

    def flush(self) -> None:
        """Write the events to disk. Call it before a checkpoint: a resumed run does not show these points again."""
        if self._events is not None:
            self._events.flush()

    def test(self, metrics: dict[str, float | None], step: int) -> None:
        """Write the metrics of the test to TensorBoard."""
        self._add("test", metrics, step)

    def _record(self, point: dict[str, Any]) -> None:
        figures = {name: value for name, value in point.items() if name not in ("step", "rows")}
        self._add("train", figures, point["step"])

    def _add(self, part: str, figures: Mapping[str, float | None], step: int) -> None:
        if self._events is None:
            return
        for name, value in figures.items():
            if value is not None:
                self._events.add_scalar(f"{part}/{name}", value, step)


def describe(point: dict[str, Any], figures: Figures) -> str:
    """A point of the curves as one short line."""
    parts = [f"{figure.name} {figure.of(point)}" for figure in figures.short if figure.key in point]
    if "rows_per_s" in point:

        def text(name: str, form: str) -> str:
            value = point.get(name)
            return "-" if value is None else format(value, form)

        parts += [
            f"{text('rows_per_s', ',.0f')} {figures.unit}/s",
            f"hit {text('hit_rate', '.1%')}",
            f"stall {text('stall_share', '.1%')}",
        ]
    return "  ".join(parts)
