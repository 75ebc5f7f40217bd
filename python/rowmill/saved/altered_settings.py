"""The settings of an altered run: the settings of the old run with another dim, row optimizer or optimizer parameters."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from rowmill.config.config import load_config, read_settings
from rowmill.config.sections import OptimizerParameters
from rowmill.config.setting import ConfigError
from rowmill.train.rows import row_optimizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rowmill.config.config import Config

_PARAMETERS = tuple(entry.name for entry in fields(OptimizerParameters))
_ALTERABLE = (
    *("model.dim", "rows.optimizer", "rows.lr", "rows.tables", "store.memory"),
    *(f"rows.{name}" for name in _PARAMETERS),
)
_OF_THE_FOLDER = ("train.out", "train.resume", "train.replace", "train.continues", "store.path")


def of_tables(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of `--table NAME:KEY=VALUE`, by table.

    Examples:
        >>> of_tables(["user:eps=1e-6", "user:lr=0.1"])
        {'user': {'eps': '1e-6', 'lr': '0.1'}}
    """
    tables: dict[str, dict[str, str]] = {}
    for text in given:
        setting, found, value = text.rpartition("=")
        table, named, key = setting.rpartition(":")
        if not found or not named or not table:
            raise ConfigError(
                f"--table must be NAME:KEY=VALUE, such as user:eps=1e-6, got {text!r}"
            )
        if key == "dim":
            raise ConfigError(
                f"--table {text}: the tables of a run have one dim, because its model joins their vectors by that width: drop "
                "it, or alter all tables with --dim"
            )
        tables.setdefault(table, {})[key] = value
    return tables


def altered_settings(
    before: Config,
    file: Path | None,
    flags: Mapping[tuple[str, str], Any],
    tables: Mapping[str, Mapping[str, str]],
    out: Path,
) -> Config:
    """The settings of the altered run.

    Args:
        before: The settings of the run.
        file: Config file that says what changes; it may repeat other settings of the run.
        flags: Values by section and key, which override the file.
        tables: Settings of single tables.
        out: The folder of the altered run.

    Raises:
        ConfigError: A setting is invalid, or is not one that can be altered.
    """
    content = {name: values for name, values in before.as_dict().items() if values is not None}
    given = _section({} if file is None else read_settings(file), "rows")
    optimizer = flags.get(("rows", "optimizer"), given.get("optimizer"))
    rows = content["rows"]
    if optimizer not in (None, before.rows.optimizer):
        # The parameters of an optimizer do not fit another one.
        rows |= dict.fromkeys(_PARAMETERS)
    merged: dict[str, Any] = {**_section(rows, "tables"), **_section(given, "tables")}
    for name, values in tables.items():
        known = _section(merged, name)
        if values.get("optimizer", known.get("optimizer")) != known.get("optimizer"):
            known = {"lr": known.get("lr")}
        merged[name] = {**known, **values}
    here = {("train", "out"): out, ("store", "path"): None, ("rows", "tables"): merged or None}
    config = load_config(file, {**flags, **here}, content)
    changed = {name: pair for name, pair in _changed(before, config) if name not in _OF_THE_FOLDER}
    for name, (old, new) in changed.items():
        if name not in _ALTERABLE:
            raise ConfigError(
                f"{name} is {old!r} and would be {new!r}: alter changes the dim, and the optimizer of rows with its "
                "parameters. Drop the setting; rates and policies change with `rowmill train --continue`"
            )
    if not changed.keys() - {"store.memory"}:
        raise ConfigError(
            "nothing is altered: the settings are those of the run; give --dim, --row-optimizer, --row-lr, --eps, --table or a "
            "config file with others"
        )
    for table in (None, *(config.rows.tables or {})):
        row_optimizer(config.rows, table)
    return config


def _changed(one: Config, other: Config) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Name, old and new value of every setting that differs."""
    before, after = one.as_dict(), other.as_dict()
    for section in before:
        old, new = _section(before, section), _section(after, section)
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                yield f"{section}.{key}", (old.get(key), new.get(key))


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    """A section of settings; empty if it is missing, or is no section, which is an error of its own."""
    found = content.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
