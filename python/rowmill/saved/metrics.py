"""`rowmill evaluate`: the metrics of the trainer's test on other data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.saved.loaded_run import load

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config


def evaluate(
    run: Path,
    data: Path,
    *,
    part: str | None = None,
    version: str | None = None,
    graph: Path | None = None,
    scratch: Path | None = None,
) -> tuple[dict[str, float | None], Config]:
    """The metrics of a run on labelled data, and the settings of the run.

    Args:
        run: Folder of a run of `rowmill train`.
        data: As `LoadedRun.evaluate` of the task takes it.
        part: Part of the data, as `LoadedRun.evaluate` takes it.
        version: Name or number of a version; None: the last checkpoint.
        graph: Where the graph of the run is now, if it has moved.
        scratch: As of `rowmill.load`.
    """
    with load(run, version=version, data=graph, scratch=scratch) as loaded:
        return loaded.evaluate(data, part), loaded.config
