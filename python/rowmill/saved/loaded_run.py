"""`rowmill.load`: a trained run with its model, its transform of raw data and its tables, read-only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from rowmill.config.setting import ConfigError
from rowmill.errors import CheckpointMissing, StoreSuperseded
from rowmill.saved.saved_run import NodeRows, SavedRun
from rowmill.train.machine import step_threads

if TYPE_CHECKING:
    import os
    from collections.abc import Generator, Iterator, Mapping

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from rowmill.config.config import Config
    from rowmill.store.tables import Table

_TASKS = {
    "ctr": "rowmill.ctr.loaded_clicks:LoadedClicks",
    "kge": "rowmill.kge.loaded_triples:LoadedTriples",
    "gnn": "rowmill.gnn.loaded_nodes:LoadedNodes",
}
"""The class of each task, by name: tasks import this package."""
_TRIES = 4
"""How often to open a checkpoint that training replaces meanwhile."""


@dataclass(frozen=True)
class Scored:
    """Scores of a batch of examples, in the order of the data.

    Attributes:
        scores: float32 `[n]` or `[n, K]`, the content of a `.npy` file.
        columns: The columns of a Parquet file, by name, as arguments of `pyarrow.array`.
    """

    scores: NDArray[np.float32]
    columns: Mapping[str, Any]


class LoadedRun(ABC):
    """A trained run, opened by `rowmill.load`. Use it in a `with` block, or call `close`.

    Each task has its class: `rowmill.ctr.LoadedClicks`, `rowmill.kge.LoadedTriples` and
    `rowmill.gnn.LoadedNodes`.

    Attributes:
        folder: The folder of its rows.
        config: The settings of the run.
        step: Training steps before the checkpoint.
        dropped: Tables that the run no longer uses.
    """

    parts: ClassVar[tuple[str, ...]]
    """Parts of the data that `scored` and `evaluate` accept; the first is the default of `scored`."""

    def __init__(self, saved: SavedRun) -> None:
        self.saved = saved
        self.folder = saved.folder
        self.config: Config = saved.config
        self.step: int = saved.state.step
        self.dropped: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        train, model = self.config.train, self.config.model
        return f"{type(self).__name__}({str(self.folder)!r}, model={model.kind!r}, task={train.task!r}, step={self.step})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the tables."""
        self.saved.close()

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables by name, read-only. The first use merges the rows of many ranks into a copy."""
        store = self.saved.store
        names = (name for name in store.table_names() if name not in self.dropped)
        return {name: store.open_table(name) for name in names}

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The model in eval mode; its rows are read from the tables and never trained."""

    @abstractmethod
    def transform(self, raw: Any) -> tuple[Any, ...]:
        """The arguments of `model` for raw data."""

    @abstractmethod
    def predict(self, raw: Any) -> Tensor:
        """Scores of raw data, float32, without gradients, in the precision and with the number of threads of the run."""

    @abstractmethod
    def scored(self, data: Path, part: str | None = None) -> Iterator[Scored]:
        """Scores of a file, in the batches of the trainer's test: equal to its scores to the bit.

        Args:
            data: The file or folder.
            part: One of `parts`; None: the first.
        """

    @abstractmethod
    def evaluate(self, data: Path, part: str | None = None) -> dict[str, float | None]:
        """The metrics of the trainer's test on a part of other data, by name; None where a metric is undefined.

        Args:
            data: The file or folder.
            part: One of `parts`; None: "test" where the data has parts, else all of it.
        """

    @contextmanager
    def threads(self) -> Generator[None]:
        """In this block torch computes with as many threads as the trainer of the run, on which last bits depend."""
        before = torch.get_num_threads()
        torch.set_num_threads(step_threads(self.config))
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def names_of(self, table: str, ids: NDArray[np.int64]) -> Mapping[str, Any]:
        """Columns that describe ids of a table, by name; empty if the run knows nothing but the ids."""
        return {}

    def chosen_part(self, part: str | None, usual: str) -> str:
        """A valid part; raises `ConfigError` for a part that this task does not have."""
        if part is None:
            return usual
        if part not in self.parts:
            raise ConfigError(
                f"--part must be one of {', '.join(self.parts)} for a run with train.task = "
                f"{self.config.train.task!r}, got {part!r}"
            )
        return part


def load(
    run: str | os.PathLike[str],
    *,
    version: str | int | None = None,
    memory: int | str | None = None,
    data: str | os.PathLike[str] | None = None,
    scratch: str | os.PathLike[str] | None = None,
    rows: str | None = None,
    access: str | os.PathLike[str] | None = None,
) -> LoadedRun:
    r"""Load a run of `rowmill train`, of any task, for reading. The run may be training.

    A click model needs none of its training data. A knowledge graph needs it only for names, if the folder of the run
    lacks them, and to leave out known triples. A graph neural network needs its graph.

    Args:
        run: Folder of the run (`--out`), or of its rows (`--store`, or one that `rowmill restore` has made).
        version: Name or number of a version (`rowmill versions`), or "best": the one with the best `checkpoint.best`; None:
            the last checkpoint.
        memory: Memory budget for rows; None: `store.memory` of the run.
        data: Path of the graph of a run with `--task kge` or `gnn`; None: its path in training.
        scratch: Folder for a merged copy of the rows of a run of many ranks, which is removed by `close`; None: the folder
            for temporary files.
        rows: URL of a storage node that was filled from this run, `nvme+tcp://HOST:PORT/NQN`; None: the rows of the run.
        access: For `rows`: TOML file with name and keys of this host, as for `rowmill.open`.

    Raises:
        CheckpointMissing: The folder has no checkpoint of a run.
        InvalidInput: There is no such version; the message lists those that exist.
        DataError: The graph is missing, or differs from the graph of the run.
        StoreCorrupt: A file is damaged; names the file.

    Examples:
        >>> import io, tempfile, pathlib, rowmill
        >>> from rich.console import Console
        >>> from rowmill.config import load_config
        >>> from rowmill.train import train
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> lines = [f"n{i}\tnext\tn{(i + 1) % 9}\n" for i in range(9)]
        >>> for part in ("train", "valid", "test"):
        ...     _ = (folder / f"{part}.tsv").write_text("".join(lines))
        >>> settings = {
        ...     ("train", "task"): "kge",
        ...     ("data", "path"): folder,
        ...     ("train", "out"): folder / "run",
        ... }
        >>> settings |= {("model", "dim"): 8, ("store", "memory"): "32MiB", ("train", "epochs"): 3}
        >>> report = train(load_config(None, settings), Console(file=io.StringIO()))
        >>> with rowmill.load(folder / "run") as loaded:
        ...     scores = loaded.predict([("n0", "next", "n1"), ("n1", "next", "n0")])
        ...     loaded.tables["entities"].get([0]).shape, scores.shape
        ((1, 8), torch.Size([2]))
    """
    if access is not None and rows is None:
        raise ConfigError(f"access is {access}, for the rows of a storage node: give rows too")
    node = None if rows is None else NodeRows(rows, None if access is None else Path(access))
    folder = None if scratch is None else Path(scratch)
    saved = _opened(Path(run), version, memory=memory, scratch=folder, node=node)
    try:
        task: Any = resolve_name(_TASKS[saved.config.train.task])
        return task(saved, None if data is None else Path(data))
    except BaseException:
        saved.close()
        raise


def _opened(
    run: Path,
    version: str | int | None,
    *,
    memory: int | str | None,
    scratch: Path | None,
    node: NodeRows | None,
) -> SavedRun:
    """A checkpoint whose rows are open, of one process; the parts of ranks are opened when they are merged."""
    tried = 0
    while True:
        tried += 1
        saved = SavedRun.open(run, version=version, memory=memory, scratch=scratch, node=node)
        try:
            _ = None if saved.of_ranks else saved.store
        except (CheckpointMissing, StoreSuperseded):
            # Training made the next checkpoint between the two.
            if tried == _TRIES:
                raise
        else:
            return saved
