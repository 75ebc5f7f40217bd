"""`rowmill predict`: scores of data by a trained run, computed by the code of the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.errors import InvalidInput
from rowmill.saved.loaded_run import load
from rowmill.saved.new_files import NpyFile, ParquetFile, check_new, new_file

if TYPE_CHECKING:
    from pathlib import Path


def predict(
    run: Path,
    data: Path,
    out: Path,
    *,
    part: str | None = None,
    version: str | None = None,
    graph: Path | None = None,
    rows: str | None = None,
    access: Path | None = None,
) -> int:
    """Score data and write the scores; returns their number.

    Args:
        run: Folder of a run of `rowmill train`.
        data: As `LoadedRun.scored` of the task takes it.
        out: File to write, in the order of the data; it must not exist. A name that ends in `.npy`: the scores as float32
            `[n]` or `[n, K]`. Else Parquet, with further columns.
        part: Part of the data, as `LoadedRun.scored` takes it.
        version: Name or number of a version; None: the last checkpoint.
        graph: Where the graph of the run is now, if it has moved.
        rows: URL of a storage node that was filled from this run; None: the rows of the run.
        access: For `rows`: file with name and keys of this host, as for `rowmill.open`.

    Raises:
        DataError: A value of `data` cannot be read; names file, row and column.
        InvalidInput: Something is at `out`, or `part` or `version` does not exist.
    """
    check_new(out)
    count = 0
    opened = load(run, version=version, data=graph, scratch=out.parent, rows=rows, access=access)
    with opened as loaded:
        as_npy = out.suffix == ".npy"
        with new_file(out) as unfinished, (NpyFile if as_npy else ParquetFile)(unfinished) as file:
            for scored in loaded.scored(data, part):
                count += len(scored.scores)
                if isinstance(file, NpyFile):
                    file.write(scored.scores)
                else:
                    file.write(scored.columns)
            if count == 0:
                within = "" if part is None else f" in part {part}"
                raise InvalidInput(f"data {data} has no examples{within}: no scores were written")
    return count
