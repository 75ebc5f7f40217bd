"""What a run saved for later commands, read from its folder without its data: its settings, and files of its task by role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowmill.config.setting import ConfigError
from rowmill.errors import CheckpointMissing
from rowmill.train.found_run import described_run, has_checkpoint
from rowmill.train.run_files import files_of, read_run_file

if TYPE_CHECKING:
    from pathlib import Path

    from rowmill.config.config import Config

_OF_THE_DATA = {
    "data": ("path", "train_rows", "schema", "follow", "until"),
    "store": ("path",),
    "train": ("out",),
}
"""Settings that do not apply to the next data of a run, or that its folder gives. The columns of its log are a file."""
_OF_A_NEW_RUN = ("generate", "sequences", "nodes", "warm_start")


def settings_to_save(config: Config) -> dict[str, Any]:
    """The settings as a file of the run has them: a run that is resumed writes the same file."""
    settings = config.as_dict()
    for name in ("resume", "replace", "continues"):
        del settings["train"][name]
    return settings


def saved_settings(run: Path) -> dict[str, dict[str, Any]]:
    """The settings with which the next data of a run is trained on, unless others are given, by section and key.

    Raises:
        CheckpointMissing: The folder has no checkpoint of a run, or one from before runs saved their settings.
    """
    content: dict[str, dict[str, Any] | None] = saved_file(run, "config")
    settings = {
        name: values
        for name, values in content.items()
        if values is not None and name not in _OF_A_NEW_RUN
    }
    for section, names in _OF_THE_DATA.items():
        for name in names:
            settings[section].pop(name, None)
    return settings


def saved_file(run: Path, role: str) -> Any:
    """The content of a file of a run: see `rowmill.train.run_files` for the roles. Raises as `saved_settings`."""
    rows = run / "store"
    if not has_checkpoint(rows):
        raise CheckpointMissing(
            f"cannot continue: {run} has no checkpoint of a run; pass the folder that was given to --out, or train a new "
            f"run with --out {run}"
        )
    described = described_run(rows)
    if described is None:
        raise ConfigError(
            f"cannot continue: the store {rows} was not written by `rowmill train`: pass the folder of a run"
        )
    names = files_of(described)
    if "config" not in names:
        raise CheckpointMissing(
            f"cannot continue: the checkpoint in {rows} names no settings, because an earlier version of rowmill wrote "
            "it: run the command that trained it again with --resume, and with a larger --epochs if it was complete"
        )
    return read_run_file(rows, names[role])
