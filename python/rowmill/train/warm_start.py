"""The first rows of a new run, from files: `[warm_start]` of the settings.

A run that resumes has them in its checkpoint. One that was killed before its first checkpoint begins anew, and reads them
again. So they are applied once.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rowmill.config.setting import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from rowmill.config.config import Config
    from rowmill.train.rows import StoredRows

_KEYS = ("vectors", "ids")


def flag_of(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """The settings of `--warm-start TABLE=FILE[,vectors=NAME][,ids=NAME]`, given once per table.

    Examples:
        >>> flag_of(["user=model.pt,vectors=users.weight"])
        {'user': {'file': 'model.pt', 'vectors': 'users.weight'}}
    """
    tables: dict[str, dict[str, str]] = {}
    for text in given:
        first, *rest = text.split(",")
        table, found, file = first.partition("=")
        values = {key: value for key, _, value in (part.partition("=") for part in rest)}
        if not found or not table or not file or not set(values) <= set(_KEYS):
            raise ConfigError(
                f"--warm-start must be TABLE=FILE, and then ,vectors=NAME or ,ids=NAME, got {text!r}; if a name holds a comma "
                "or =, write [warm_start.tables] in a config file"
            )
        if table in tables:
            raise ConfigError(f"--warm-start names table {table!r} twice: give one file per table")
        tables[table] = {"file": file, **values}
    return tables


def warm_start(config: Config, rows: StoredRows, console: Console) -> None:
    """Put the rows of the files of the settings into the tables of a run that has no checkpoint yet.

    Raises:
        ConfigError: The rows are read-only features.
        DataError: A file does not fit its table; names file, row and value.
    """
    tables = config.warm_start.tables
    if not tables:
        return
    if config.train.task == "gnn" and config.gnn.rows == "features":
        raise ConfigError(
            f'warm_start.tables.{next(iter(tables))}: with gnn.rows = "features" rows are the features of the graph: set '
            'gnn.rows = "learned", or drop --warm-start'
        )
    if rows.has_checkpoint:
        return
    of_name = {table.name: table for table in rows.tables}
    for name, given in tables.items():
        count = rows.load(of_name[name], **asdict(given))
        console.print(
            f"Warm start: {count:,} rows of table {name} from {given.file}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
