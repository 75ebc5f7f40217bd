"""`rowmill vectors`: the rows of every table as Parquet and `.npy` files."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from rowmill.errors import InvalidInput
from rowmill.saved.loaded_run import load
from rowmill.saved.new_files import NpyFile, ParquetFile, check_new, new_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_UNSAFE = re.compile(r"[^\w.-]")


@dataclass(frozen=True)
class WrittenTable:
    """The files of a table.

    Attributes:
        name: Its name.
        rows: Number of rows written.
        dim: Weights per row.
        file: Name of its files without suffix.
    """

    name: str
    rows: int
    dim: int
    file: str


def write_vectors(
    run: Path, out: Path, *, version: str | None = None, graph: Path | None = None
) -> list[WrittenTable]:
    """Write the weights of every row of a run into a new folder, table by table, in batches.

    For each table NAME the folder gets `NAME.parquet` (`id`, what else the run knows of a row, such as its name, and
    `vector`, a list of a fixed length), `NAME.npy` (float32 `[rows, dim]`) and `NAME.ids.npy` (int64 `[rows]`). All have the
    same rows, in the same order. Ids without a row are left out.

    Args:
        run: Folder of a run of `rowmill train`.
        out: The folder; it must not exist.
        version: Name or number of a version; None: the last checkpoint.
        graph: Where the graph of the run is now, if it has moved.

    Raises:
        InvalidInput: Something is at `out`, or there is no such version.
    """
    check_new(out)
    with load(run, version=version, data=graph, scratch=out.parent) as loaded, ExitStack() as stack:
        folder = stack.enter_context(new_folder(out))
        dims: dict[str, int] = {
            spec["name"]: spec["dim"]
            for spec in loaded.saved.specs()
            if spec["name"] not in loaded.dropped
        }
        files = {name: _UNSAFE.sub("_", name) for name in dims}
        if len(set(files.values())) < len(files):
            raise InvalidInput(
                f"two tables of {loaded.folder} would have the same file name: {', '.join(map(repr, files))}"
            )
        with ExitStack() as opened:
            writers = {
                name: (
                    opened.enter_context(ParquetFile(folder / f"{file}.parquet")),
                    opened.enter_context(NpyFile(folder / f"{file}.npy")),
                    opened.enter_context(NpyFile(folder / f"{file}.ids.npy")),
                )
                for name, file in files.items()
            }
            counts = dict.fromkeys(files, 0)
            for name, ids, weights in chain(_no_rows(dims), loaded.saved.rows()):
                if name in loaded.dropped:
                    continue
                table, vectors, numbers = writers[name]
                vectors.write(weights)
                numbers.write(ids)
                table.write({"id": ids, **loaded.names_of(name, ids), "vector": weights})
                counts[name] += len(ids)
        return [WrittenTable(name, counts[name], dims[name], file) for name, file in files.items()]


def _no_rows(
    dims: dict[str, int],
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[np.float32]]]:
    """A batch of no rows of every table, so that a table without rows gets files too."""
    for name, dim in dims.items():
        yield name, np.empty(0, np.int64), np.empty((0, dim), np.float32)
