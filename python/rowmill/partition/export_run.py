"""`rowmill export`: a checkpoint of a click model becomes a bundle, without its training data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import rowmill
from rowmill.config.setting import ConfigError
from rowmill.ctr.loaded_clicks import click_columns, click_model, precision_of
from rowmill.ctr.rows import Columns
from rowmill.partition.export import export
from rowmill.partition.new_bundle import hidden_folder, new_path
from rowmill.partition.transform import transform_of
from rowmill.saved.saved_run import SavedRun

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from rowmill.partition.placement import Rule
    from rowmill.store import Store

_CANDIDATES = 64
"""Rows of the nominal request, for which rules count bytes."""
_KNOWN_ROWS = 1024


class Scores(nn.Module):
    """Probabilities of clicks, float32 [B] or [B, T], in the precision of a run."""

    def __init__(self, saved: SavedRun, store: Store) -> None:
        super().__init__()
        self.model = click_model(saved, store)
        self._config = saved.config

    def forward(self, dense: Tensor, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Scores of B rows, as `rowmill predict` has them."""
        rest = [] if lengths is None else [lengths]
        with precision_of(self._config):
            logits = self.model(dense, ids, *rest)
        return logits.float().sigmoid()


def export_run(
    run: Path,
    out: str | os.PathLike[str],
    *,
    rule: Rule = "bytes",
    compile: bool = False,
    version: str | None = None,
) -> tuple[str, ...]:
    """Write a bundle of a checkpoint of a run of `rowmill train --task ctr`.

    Args:
        run: The folder of the run, or of its rows. The run may be training.
        out: The folder of the bundle; nothing may be there.
        rule: As of `rowmill.export`.
        compile: As of `rowmill.export`.
        version: Name or number of a version, or "best"; None: the last checkpoint.

    Returns:
        Notes about unusual properties of the bundle, one sentence each.

    Raises:
        BundleExists: Something is at `out`.
        CheckpointMissing: The run has no checkpoint that can be exported; says how to make one.
        InvalidInput: There is no such version; the message lists those that exist.
        OSError: The disk is full, or another failure of the system; names the path. Nothing is at `out` then.
    """
    path = new_path(out)
    with SavedRun.open(run, version=version) as saved:
        return _exported(saved, path, rule, compile=compile)


def _exported(saved: SavedRun, path: Path, rule: Rule, *, compile: bool) -> tuple[str, ...]:
    if saved.config.train.task != "ctr":
        raise ConfigError(
            f"{saved.folder} is of a run with train.task = {saved.config.train.task!r}: only click models (--task ctr) can be "
            "exported"
        )
    # Beside the bundle, so that its files need no second copy there.
    with hidden_folder(path) as folder:
        rows = folder / "rows"
        saved.copy_rows(rows)
        with rowmill.open(rows, memory=saved.config.store.memory, read_only=True) as store:
            generator = torch.Generator().manual_seed(0)
            examples = [_example(saved, store, count, generator) for count in (_CANDIDATES, 2)]
            names = {name: name for name in examples[0]}
            return export(
                Scores(saved, store),
                examples,
                out=path,
                rule=rule,
                compile=compile,
                user=["lengths"] if "lengths" in names else [],
                transform=transform_of(*click_columns(saved), names),
                rows=rows,
            )


def _example(
    saved: SavedRun, store: Store, count: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """A request with ids that the tables have rows of, and missing values."""
    schema, way = click_columns(saved)
    columns = Columns.of(schema, way)
    known = [_known(store, name, way.missing) for name in schema.ids]
    ids = torch.stack(
        [
            known[table][torch.randint(len(known[table]), (count,), generator=generator)]
            for table in columns.tables
        ],
        dim=1,
    )
    dense = torch.rand(count, len(schema.dense), generator=generator) * 4
    if not schema.histories:
        return {"dense": dense, "ids": ids}
    lengths = torch.randint(schema.places + 1, (count,), generator=generator)
    places = torch.arange(schema.places)
    for number in range(len(schema.histories)):
        first = len(schema.ids) + number * schema.places
        ids[:, first : first + schema.places][places >= lengths.unsqueeze(1)] = way.missing
    return {"dense": dense, "ids": ids, "lengths": lengths}


def _known(store: Store, table: str, missing: int) -> Tensor:
    ids = next((ids for ids, _ in store.open_table(table).scan(batch_rows=_KNOWN_ROWS)), None)
    found = torch.tensor([missing])
    return found if ids is None else torch.cat([torch.as_tensor(ids), found])
