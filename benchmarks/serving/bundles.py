"""What is served: stores of rows, and a bundle for each model; made once and kept."""

import json
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

import rowmill
from benchmarks.provenance import Source
from benchmarks.serving.requests import requests
from benchmarks.serving.shapes import SPLIT, D, Shape, module_of
from rowmill.partition.placement import Rule

DEVIATION = 0.1
"""Of the weights of rows."""
EXAMPLES = 2
"""Requests that a bundle comes with, which its worker must answer before it is ready."""
_BUILD_MEMORY = "1GiB"


@dataclass(frozen=True)
class Bundles:
    """Rows, bundles and requests in a folder.

    Attributes:
        folder: Where they are kept.
        rows: Rows of each table.
        count: Distinct requests of each model.
        seed: Of rows, weights and requests.
    """

    folder: Path
    rows: int
    count: int
    seed: int

    def bundle(self, shape: Shape, rule: Rule = "prism") -> Path:
        """The bundle of a model, exported if it is not there."""
        # Another exporter may write other bundles of the same model.
        exporter = Source.now().python[:12]
        kind = f"{shape.name}{shape.repeats or ''}-{rule}"
        path = self.folder / f"bundles-{self.rows}-{self.seed}-{exporter}" / kind / shape.name
        if path.exists():
            return path
        rows = self._rows(shape)
        print(f"exporting {path}", file=sys.stderr, flush=True)
        examples = requests(shape, self.rows, count=EXAMPLES, seed=self.seed)
        with self.module(shape) as module:
            rowmill.export(module, examples, out=path, rule=rule, rows=rows)
        return path

    @contextmanager
    def module(self, shape: Shape) -> Generator[nn.Module]:
        """The module of a model over the rows."""
        with rowmill.open(self._rows(shape), memory=_BUILD_MEMORY, read_only=True) as store:
            tables = [store.open_table(name) for name in names(shape.features)]
            yield module_of(shape, tables, self.seed)

    def requests(self, shape: Shape) -> Path:
        """Requests of a model in a file for `rowmill loadtest`; the first are the examples of its bundle."""
        path = self.folder / f"requests-{self.rows}-{self.seed}" / f"{shape.name}-{self.count}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = requests(shape, self.rows, count=self.count, seed=self.seed)
            tensors = {
                f"{number}.input.{name}": value
                for number, request in enumerate(made)
                for name, value in request.items()
            }
            draft = path.with_suffix(".new")
            safetensors.torch.save_file(tensors, draft)
            draft.rename(path)
        return path

    def _rows(self, shape: Shape) -> Path:
        """The store of a model's rows, made if it is not there. Bundles have links to its files.

        The models that are split share one. Another model has one without further tables, which its server would preload.
        """
        features = max(shape.features for shape in (SPLIT if shape in SPLIT else (shape,)))
        path = self.folder / f"rows-{features}x{self.rows}-{self.seed}"
        if path.exists():
            return path
        print(f"writing {path}", file=sys.stderr, flush=True)
        draft = path.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        with rowmill.open(draft, memory=_BUILD_MEMORY, seed=self.seed) as store:
            for number, name in enumerate(names(features)):
                table = store.table(
                    name, dim=D, optimizer=rowmill.optim.SGD(lr=0.0), num_rows=self.rows
                )
                table.put(torch.arange(self.rows), weights(number, self.rows, self.seed))
            store.checkpoint()
        draft.rename(path)
        return path


def names(features: int) -> list[str]:
    """Names of tables."""
    return [f"C{number}" for number in range(features)]


def weights(table: int, rows: int, seed: int) -> Tensor:
    """The rows of a table, float32 [rows, D]."""
    generator = torch.Generator().manual_seed(seed * 1000 + table)
    return torch.randn(rows, D, generator=generator) * DEVIATION


def crossing_bytes(bundle: Path) -> tuple[int, int]:
    """Bytes that a nominal request sends to the dense half, and that come back."""
    signature = json.loads((bundle / "signature.json").read_text())
    sent, back = (sum(value["bytes"] for value in signature[way]) for way in ("crossing", "reply"))
    return sent, back
