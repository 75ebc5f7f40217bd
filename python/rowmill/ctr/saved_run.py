"""The last checkpoint of a run of `rowmill train --task ctr`, read without its training data.

RUN is the folder given to `--out`, or the folder of its rows: `--store`, or one that `rowmill restore` has made.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

import rowmill
from rowmill import _core
from rowmill.config.config import Config, section_from
from rowmill.config.setting import ConfigError
from rowmill.ctr.click_model import ClickModel, build_model
from rowmill.ctr.data import FullIds, HashedIds, IdWay, Schema, Vocabulary
from rowmill.ctr.rows import Columns, pooled_dtype, stored_features
from rowmill.distributed import CHECKPOINT_FILE, Manifest, saved_state
from rowmill.errors import CheckpointMissing, StoreCorrupt
from rowmill.nn import StackedBags, load_dense_state_dict
from rowmill.optim import SGD
from rowmill.store.changes import Changes
from rowmill.train.backend import CPU
from rowmill.train.dense import dense_optimizer, dense_precision
from rowmill.train.run_files import read_run_file
from rowmill.train.state import ATTACHMENT, dense_parameters, files_of, unpacked

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rowmill.store import Store

_CHUNK_ROWS = 16_384


@dataclass(frozen=True, eq=False)
class SavedRun:
    """A checkpoint of a click model.

    Attributes:
        folder: The folder of its rows.
        config: The settings of the run.
        schema: The columns of its log.
        way: How raw ids become row ids.
        state: Dense weights by name.
        parts: The rows: one store, or one of each rank.
    """

    folder: Path
    config: Config
    schema: Schema
    way: IdWay
    state: Mapping[str, Tensor]
    parts: tuple[Changes, ...]

    @classmethod
    def open(cls, run: Path) -> SavedRun:
        """The last checkpoint of a run.

        Raises:
            CheckpointMissing: There is none, or it is older than files of runs.
            StoreCorrupt: A file of it is damaged; names the file.
            ConfigError: The run has another task than click models.
        """
        folder = _folder(run)
        if (folder / CHECKPOINT_FILE).exists():
            described, state, parts = _of_ranks(folder)
        else:
            changes = _core.Changes.open(str(folder), 0)
            packed = changes.attachment(ATTACHMENT)
            described = {} if packed is None else unpacked(packed)
            state, parts = described.get("model", {}), (Changes(changes),)
        names = files_of(described)
        if "config" not in names:
            raise CheckpointMissing(
                f"the checkpoint in {folder} names no settings, because an earlier version wrote it, or a program other "
                "than `rowmill train`: run the command that trained it again with --resume, and with a larger "
                "--epochs if it was complete, then export its next checkpoint"
            )
        config = _config(read_run_file(folder, names["config"]))
        if config.train.task != "ctr":
            raise ConfigError(
                f"{folder} is of a run with train.task = {config.train.task!r}: only click models (--task ctr) can be "
                "exported or predicted"
            )
        schema = schema_from(read_run_file(folder, names["schema"]))
        values = read_run_file(folder, names["vocabulary"]) if "vocabulary" in names else None
        return cls(folder, config, schema, _way(config, schema, values), state, parts)

    def copy_rows(self, folder: Path) -> None:
        """Copy the weights of all rows, without optimizer state, into a new store.

        A missing row is born from seed, table and id, so the copy has the seed and the tables of the run.
        """
        config = self.config
        sizes = self.way.rows(len(self.schema.ids)) or [None] * len(self.schema.ids)
        width = config.rows.initial_width
        memory = config.store.memory
        with closing(rowmill.open(folder, memory=memory, seed=config.train.seed)) as target:
            for name, size in zip(self.schema.ids, sizes, strict=True):
                target.table(
                    name,
                    dim=config.model.dim,
                    dtype="fp32" if config.rows.dtype == "fp32" else "bf16",
                    optimizer=SGD(lr=0.0),
                    initializer=rowmill.init.Uniform(-width, width),
                    num_rows=size,
                )
            for part in self.parts:
                part.batch_rows = _CHUNK_ROWS
                for batch in part:
                    if len(batch.ids):
                        target.open_table(batch.table).put(
                            torch.from_numpy(np.array(batch.ids)),
                            torch.from_numpy(np.array(batch.weights)),
                        )
            target.checkpoint()

    def model(self, store: Store) -> ClickModel:
        """The trained model in eval mode, over the rows of a store."""
        tables = [store.open_table(name) for name in self.schema.ids]
        features = stored_features(tables, Columns.of(self.schema, self.way))
        embeddings = StackedBags(features, output_dtype=pooled_dtype(self.config))
        model = build_model(self.config.model, embeddings, self.schema)
        # With split-bf16 the optimizer makes the weights bfloat16.
        dense_optimizer(self.config.train, dense_parameters(model), CPU)
        load_dense_state_dict(model, self.state)
        return model.eval()

    def precision(self) -> torch.autocast:
        """In which products are taken inside of it, as in training."""
        return dense_precision(self.config.train, CPU)

    @contextmanager
    def rows(self, copy: Path) -> Generator[Store]:
        """The rows, read-only: of one process where they are, of many ranks merged in `copy`, a folder to make."""
        if (self.folder / CHECKPOINT_FILE).exists():
            self.copy_rows(copy)
            folder, at = copy, None
        else:
            # Rows of the next checkpoint would not fit the dense weights of this one.
            folder, at = self.folder, self.parts[0].until
        with rowmill.open(folder, memory=self.config.store.memory, read_only=True, at=at) as store:
            yield store


def _folder(run: Path) -> Path:
    for folder in (run / "store", run):
        if (folder / "MANIFEST").exists() or (folder / CHECKPOINT_FILE).exists():
            return folder
    raise CheckpointMissing(
        f"{run} has no checkpoint: give the folder of a run (--out of `rowmill train`) or of its rows (--store)"
    )


def _of_ranks(folder: Path) -> tuple[dict[str, Any], dict[str, Any], tuple[Changes, ...]]:
    manifest = Manifest.load(folder)
    assert manifest is not None, "the file is there"
    described = cast(
        "dict[str, Any]", manifest.position if isinstance(manifest.position, dict) else {}
    )
    parts = tuple(
        Changes(
            _core.Changes.open(str(folder / f"parts-{manifest.generation}" / str(rank)), 0, epoch)
        )
        for rank, epoch in enumerate(manifest.epochs)
    )
    state = saved_state(folder, manifest)["model"]
    return described, state, parts


def _config(content: dict[str, Any]) -> Config:
    sections = {name: values for name, values in content.items() if values is not None}
    return Config(**{name: section_from(name, values) for name, values in sections.items()})


def schema_from(content: dict[str, Any]) -> Schema:
    """The columns of a log, from the file of a run."""
    histories = tuple((column, of) for column, of in content.pop("histories"))
    lists: dict[str, Any] = {
        key: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for key, value in content.items()
    }
    return Schema(**lists, histories=histories)


def _way(config: Config, schema: Schema, values: list[list[int]] | None) -> IdWay:
    match config.data.ids:
        case "full":
            return FullIds()
        case "hash":
            return HashedIds(config.data.buckets, tuple(schema.id_features))
        case _:
            if values is None:
                raise StoreCorrupt(
                    "data.ids is vocabulary, but the checkpoint has no vocabulary: restore the folder from a copy"
                )
            known = tuple(np.array(column, np.int64) for column in values)
            return Vocabulary(known, tuple(schema.id_features))
