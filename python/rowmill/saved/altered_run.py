"""`rowmill alter`: a new run with the rows and the dense half of a stopped one, and another dim or row optimizer."""

from __future__ import annotations

import errno
import io
import json
from contextlib import closing
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import torch

import rowmill
from rowmill import _core
from rowmill.config.setting import ConfigError
from rowmill.distributed import NewCheckpoint, checkpoint_of_ranks, saved_state, take_lock
from rowmill.errors import StoreFull, StoreLocked
from rowmill.files import link_or_copy, make_durable, sync_folder
from rowmill.optim.specs import initializer_from_dict, optimizer_from_dict
from rowmill.saved.altered_rows import AlteredTable, copy_rows
from rowmill.saved.altered_settings import altered_settings, of_tables
from rowmill.saved.new_files import check_new, new_folder
from rowmill.saved.saved_run import SavedRun, folder_of_rows
from rowmill.store.changes import Changes
from rowmill.train.rows import check_tables, new_table
from rowmill.train.run_files import (
    FILES_ATTACHMENT,
    RunFiles,
    copy_run_file,
    files_of,
    listed,
    read_run_file,
)
from rowmill.train.saved_files import settings_to_save
from rowmill.train.state import ATTACHMENT, unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rowmill.config.config import Config
    from rowmill.saved.resizing import Resizing
    from rowmill.store import Store

_RESIZING = {
    "ctr": "rowmill.ctr.dim_names:resizing",
    "kge": "rowmill.kge.dim_names:resizing",
    "gnn": "rowmill.gnn.dim_names:resizing",
}
"""What depends on the dim in each task, by name: tasks import this package."""
_NAMES = ("entities.txt", "relations.txt")
_STATE = ("model", "optimizer", "random")
"""What a checkpoint of many ranks has in a file of its own."""


@dataclass(frozen=True)
class Altered:
    """The result of `alter`.

    Attributes:
        config: The settings of the new run.
        rows: Number of rows.
        tables: Number of tables.
        begun_anew: Tables whose optimizer state was reset.
    """

    config: Config
    rows: int
    tables: int
    begun_anew: tuple[str, ...]


def alter(
    run: Path,
    out: Path,
    *,
    file: Path | None = None,
    flags: Mapping[tuple[str, str], Any] | None = None,
    tables: Sequence[str] = (),
) -> Altered:
    """Copy a run with another dim, row optimizer, or optimizer parameters. The old run does not change.

    The new run is at the position of the old one in its data. Rows keep their weights as far as the new dim reaches; new
    weights have the initial values of their table. Optimizer state is kept if the optimizer is the same.

    Args:
        run: Folder of the old run, or of its rows. No process may train it.
        out: Folder of the new run; nothing may be there.
        file: Config file with the new settings.
        flags: Settings by section and key, which override the file.
        tables: Settings of single tables, as `NAME:KEY=VALUE`.

    Raises:
        ConfigError: A setting cannot be altered, or not for this model; says why.
        CheckpointMissing: The folder has no checkpoint of a run.
        StoreLocked: The run is being trained.
        StoreFull: The disk is full. Nothing is at `out` then.
    """
    check_new(out)
    rows = folder_of_rows(run)
    if out.resolve().is_relative_to(rows.resolve()):
        raise ConfigError(f"--out {out} is in the folder of the rows of RUN: give another path")
    try:
        lock = take_lock(rows)
    except StoreLocked:
        raise StoreLocked(
            f"{rows} is open for writing in another process: stop the run, then alter it"
        ) from None
    try:
        saved = SavedRun.open(run)
        config = altered_settings(saved.config, file, flags or {}, of_tables(tables), out)
        _check(saved, config)
        resizing: Resizing | None = None
        if config.model.dim != saved.config.model.dim:
            resizing = resolve_name(_RESIZING[config.train.task])(saved, config)
        with new_folder(out) as folder:
            altered = _write(saved, config, resizing, folder)
            make_durable(folder)
        sync_folder(out.parent)
    except OSError as error:
        if not isinstance(error, StoreFull) and error.errno != errno.ENOSPC:
            raise
        raise StoreFull(
            f"no space left for {out} on the disk of {out.parent}, and nothing was written there: free some space, or give a "
            f"path on another disk ({error})"
        ) from None
    finally:
        lock.release()
    return altered


def _check(saved: SavedRun, config: Config) -> None:
    check_tables(config, [spec["name"] for spec in saved.specs()])
    if config.train.task == "gnn" and config.gnn.rows == "features":
        raise ConfigError(
            f'{saved.folder} holds a run with gnn.rows = "features": its rows are the features of the graph, which have its '
            "width and no optimizer; there is nothing to alter"
        )


def _write(saved: SavedRun, config: Config, resizing: Resizing | None, folder: Path) -> Altered:
    content = _altered_content(_content(saved), config, resizing)
    names = files_of(content)
    files = RunFiles({"config": settings_to_save(config)})
    rows = folder / "store"
    rows.mkdir()
    files.write(rows)
    for name in names.values():
        read_run_file(saved.folder, name)
        copy_run_file(saved.folder / name, rows / name)
    names |= files.names
    content["files"] = json.dumps(names)
    checkpoint = None
    if saved.of_ranks:
        checkpoint = NewCheckpoint(rows, checkpoint_of_ranks(saved.folder, None)[0])
    tables: dict[str, AlteredTable] = {}
    count = 0
    for rank, part in enumerate(saved.parts):
        place = rows if checkpoint is None else checkpoint.next_part()
        with closing(_new_store(place, config)) as store:
            changes = _core.Changes.open(str(part.folder), 0, part.at)
            tables = {
                spec["name"]: _table(store, config, spec, resizing) for spec in changes.tables()
            }
            copied = copy_rows(Changes(changes), tables)
            count += sum(
                n for name, n in copied.items() if rank == 0 or name not in saved.replicated
            )
            if checkpoint is None:
                torch.save(content, buffer := io.BytesIO())
                attached = {ATTACHMENT: buffer.getvalue(), FILES_ATTACHMENT: listed(names.values())}
                store.checkpoint(attachments=attached)
            else:
                checkpoint.save_part(store)
    if checkpoint is not None:
        state = {name: content.pop(name) for name in _STATE}
        checkpoint.save(state, content)
    for name in _NAMES:
        if saved.out is not None and (saved.out / name).is_file():
            link_or_copy(saved.out / name, folder / name)
    anew = tuple(name for name, table in tables.items() if not table.keeps_state)
    return Altered(config, count, len(tables), anew)


def _new_store(folder: Path, config: Config) -> Store:
    return rowmill.open(
        folder,
        memory=config.store.memory,
        row_memory=config.store.row_memory,
        seed=config.train.seed,
    )


def _table(
    store: Store, config: Config, spec: dict[str, Any], resizing: Resizing | None
) -> AlteredTable:
    name, dim, names = spec["name"], spec["dim"], None
    if resizing is not None:
        names = resizing.before.rows[name], resizing.after.rows[name]
        dim = len(resizing.after.rows[name])
    table = new_table(
        store,
        config,
        name,
        dim=dim,
        num_rows=spec["dense_rows"],
        initializer=initializer_from_dict(spec["initializer"]),
    )
    optimizer = optimizer_from_dict(spec["optimizer"])
    return AlteredTable(table, spec["dim"], optimizer, names, spec["steps"])


def _content(saved: SavedRun) -> dict[str, Any]:
    """What the checkpoint holds beside rows."""
    if saved.of_ranks:
        manifest, _ = checkpoint_of_ranks(saved.folder, None)
        return {**manifest.position, **saved_state(saved.folder, manifest)}
    packed = _core.Changes.open(str(saved.folder), 0, saved.parts[0].at).attachment(ATTACHMENT)
    assert packed is not None, "SavedRun has read it"
    return unpacked(packed)


def _altered_content(
    content: dict[str, Any], config: Config, resizing: Resizing | None
) -> dict[str, Any]:
    """What a checkpoint holds beside rows, for the settings of the new run."""
    identity = json.loads(content["identity"])
    settings = json.loads(json.dumps(config.as_dict()))
    for section in ("model", "rows"):
        identity |= {f"{section}.{key}": value for key, value in settings[section].items()}
    content = {**content, "identity": json.dumps(identity, sort_keys=True)}
    names = files_of(content)
    del names["config"]
    content["files"] = json.dumps(names)
    if resizing is None:
        return content
    weights = content["model"]
    content["model"] = resizing.weights(weights)
    if content["optimizer"] is not None:
        content["optimizer"] = resizing.optimizer(content["optimizer"], weights)
    return content
