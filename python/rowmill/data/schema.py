"""Which columns of a click log are the label, the numeric features and the id features.

A schema file is TOML:

    label = "clicked"
    dense = ["age_days", "price"]
    ids = ["user", "item"]
    columns = ["clicked", "age_days", "price", "user", "item"]   # TSV only: what each field is, in order
    id_base = 16                                                 # TSV only: ids written in base 16 or 10
"""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rowmill.data.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Names of the columns to read.

    ``columns`` and ``id_base`` matter only for files without a header (TSV).
    """

    label: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    columns: tuple[str, ...] = ()
    id_base: int = 16

    def __post_init__(self) -> None:
        names = [self.label, *self.dense, *self.ids]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"schema names column {twice[0]!r} twice; each column has one role")
        if not self.ids:
            raise DataError("schema names no id column; list at least one under 'ids'")
        if self.id_base not in (10, 16):
            raise DataError(
                f"schema: id_base is {self.id_base}; ids of a TSV file are written in base 10 or 16"
            )
        if not self.columns:
            object.__setattr__(self, "columns", tuple(names))
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise DataError(
                f"schema: column {absent[0]!r} has a role but is not in 'columns'; add it at its place"
            )

    @property
    def names(self) -> list[str]:
        """Every column that is read: label, numeric features, id features."""
        return [self.label, *self.dense, *self.ids]


CRITEO = Schema(
    label="label",
    dense=tuple(f"I{i}" for i in range(1, 14)),
    ids=tuple(f"C{i}" for i in range(1, 27)),
)
"""The columns of the Criteo logs: label, I1..I13, C1..C26, in the order of the raw TSV files."""


def load_schema(path: Path) -> Schema:
    """Read a schema file."""
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"schema file {path} does not exist") from None
    except OSError as error:
        raise DataError(f"schema file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"schema file {path} is not valid TOML: {error}") from None
    known = {field.name for field in fields(Schema)}
    for key, value in content.items():
        if key not in known:
            raise DataError(
                f"schema file {path}: unknown key {key!r}; known: {', '.join(sorted(known))}"
            )
        is_list = key in ("dense", "ids", "columns")
        expected = (
            "a list of column names"
            if is_list
            else "a number"
            if key == "id_base"
            else "a column name"
        )
        items: list[Any] = value if is_list and isinstance(value, list) else [value]
        wanted = int if key == "id_base" else str
        if is_list != isinstance(value, list) or not all(
            isinstance(item, wanted) for item in items
        ):
            raise DataError(f"schema file {path}: {key} = {value!r}; it must be {expected}")
        if is_list:
            content[key] = tuple(items)
    for key in ("label", "dense", "ids"):
        if key not in content:
            raise DataError(f"schema file {path} lacks the key {key!r}")
    return Schema(**content)
