"""The task `ctr` on many ranks: every rank trains on a part of each batch.

Each rank reads the whole log and keeps its part of every batch. The dense half is replicated and its gradients are
summed; rows are sharded over the stores of the ranks. The loss of a rank is its share of the mean over the whole batch,
so steps and learning rates are the same as in one process.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from rowmill.ctr.data.click_batch import ClickBatch
from rowmill.ctr.models import DIEN
from rowmill.ctr.ranked_rows import open_ranked_rows
from rowmill.ctr.rows import Columns
from rowmill.ctr.task import ClickTask, Log
from rowmill.ctr.whole_batch import use_whole_batch
from rowmill.train.ending import Ending, EndingOfRanks
from rowmill.train.on_ranks import check_ranked, on_ranks, on_wire

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from rich.console import Console
    from torch import Tensor

    from rowmill.config.config import Config
    from rowmill.ctr.ranked_rows import RankedClickRows
    from rowmill.distributed import Ranks

_SEEN_S = 60.0
"""Longest wait for a file that rank 0 sees."""
_LOOK_AGAIN_S = 0.1


@dataclass(frozen=True)
class Part(ClickBatch):
    """This rank's rows of a batch."""

    whole: int = 0
    """Number of rows of the batch on all ranks."""


class RankedClickTask(ClickTask):
    """A click model and its log, on many ranks."""

    def __init__(
        self,
        config: Config,
        log: Log,
        rows: RankedClickRows,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self._ranks = ranks
        super().__init__(config, log, rows, device)
        use_whole_batch(self.model, ranks)
        # Sum gradients in the order of ranks, so that a resumed run is bit-identical to an uninterrupted one.
        self._parallel = ranks.data_parallel(self.model, repeatable=True)

    def loss(self, batch: ClickBatch, rows: Any) -> tuple[Tensor, Tensor]:
        """This rank's share of the loss, a scalar, and the logits of its rows, float32.

        `rows` is the pipeline's prepared lookup. The shares of all ranks add up to the mean over the batch.
        """
        logits = self._logits(self._parallel, batch, rows)
        labels = batch.labels.to(self.device)
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        loss = self._ranks.mean(losses)
        if isinstance(self.model, DIEN) and self.model.auxiliary_losses is not None:
            of_places = self.model.auxiliary_losses
            places = self._ranks.total(torch.tensor(float(len(of_places))))
            # In the graph also without a place: each rank's backward makes the same calls.
            loss = loss + self.config.model.auxiliary * of_places.sum() / (2 * max(places, 1))
        return loss, logits.detach().cpu()

    def take(self, file: Path) -> None:
        """As `ClickTask.take`; all ranks agree on the rows of the file. A collective."""

        def read() -> tuple[bool, dict[str, Any]]:
            _wait_for(file)
            super(RankedClickTask, self).take(file)
            self.identity |= on_wire(self.config)
            return True, self.identity

        self._ranks.agree(read, "the data")

    def ending(self) -> Ending:
        """The end of a run that follows a folder, on which all ranks agree."""
        return EndingOfRanks(self._ranks)

    def predict(self, batch: ClickBatch) -> Tensor:
        """Logits of this rank's rows."""
        return self._logits(self._parallel, batch, self.rows.inputs(batch.ids)).cpu()

    def observe(self, batch: Any, predicted: Tensor) -> None:
        """Add the logits of this rank's rows of a `Part` to the metrics."""
        super().observe(batch, predicted)
        self.window.rows += batch.whole

    def _metrics(self, metrics: Any) -> Any:
        return OfAllRanks(metrics, self._ranks)

    def _batches(self, start: int, stop: int, batch: int) -> Iterator[Part]:
        rank, count = self._ranks.rank, self._ranks.count
        for whole in super()._batches(start, stop, batch):
            rows = slice(len(whole) * rank // count, len(whole) * (rank + 1) // count)
            yield Part(
                whole.dense[rows],
                whole.ids[rows],
                whole.labels[rows],
                whole.stop,
                None if whole.lengths is None else whole.lengths[rows],
                len(whole),
            )


class _Metrics(Protocol):
    def update(self, logits: Tensor, labels: Tensor) -> None: ...
    def compute(self) -> dict[str, float | None]: ...
    def reset(self) -> None: ...


class OfAllRanks:
    """Metrics over the rows of all ranks, in the order of their batches. `compute` is a collective.

    Attributes:
        rows: Number of rows on all ranks. The caller adds to it; `update` does not.
    """

    def __init__(self, metrics: _Metrics, ranks: Ranks) -> None:
        self._metrics = metrics
        self._ranks = ranks
        self._parts: list[tuple[Tensor, Tensor]] = []
        self.rows = 0

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add this rank's part of a batch."""
        self._parts.append((logits.detach(), labels))

    def compute(self) -> dict[str, float | None]:
        """Metrics over the rows of all ranks."""
        for parts in zip(*self._ranks.gather(self._parts), strict=True):
            logits, labels = (torch.cat(of_ranks) for of_ranks in zip(*parts, strict=True))
            self._metrics.update(logits, labels)
        self._parts = []
        return self._metrics.compute()

    def reset(self) -> None:
        """Forget all rows."""
        self._metrics.reset()
        self._parts = []
        self.rows = 0


def _wait_for(file: Path) -> None:
    """Wait until this rank sees a file that rank 0 sees: network file systems show new names some seconds late."""
    deadline = time.monotonic() + _SEEN_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


@contextmanager
def open_ranked_clicks(
    config: Config, console: Console, threads: int
) -> Generator[RankedClickTask]:
    """Open the task of the settings on this rank of torchrun, with its store."""
    check_ranked_clicks(config)
    with on_ranks(config) as here:
        named = here.config

        def read() -> tuple[Log, dict[str, Any]]:
            log = Log.open(named, console)
            log = replace(log, identity=log.identity | on_wire(named))
            return log, log.identity

        log = here.agree_on_data(read)
        with open_ranked_rows(
            named,
            Columns.of(log.source.schema, log.way),
            here=here,
            sizes=log.sizes,
            threads=threads,
            identity=log.identity,
            console=console,
        ) as rows:
            here.folder.begin(console)
            yield RankedClickTask(named, log, rows, here.ranks, here.device)


def check_ranked_clicks(config: Config) -> None:
    """Raise `ConfigError` for a setting that only a run of one process supports; it names the setting."""
    check_ranked(config, {})
