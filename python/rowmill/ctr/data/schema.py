"""The schema of a click log: which columns are label, numeric features, id features and histories.

A schema file is TOML:

    label = "clicked"
    dense = ["age_days", "price"]
    ids = ["user", "item"]
    tasks = ["bought"]                                           # further labels, for models of several tasks
    item_ids = ["item"]                                          # id columns of the shown item, for two towers
    columns = ["clicked", "age_days", "price", "user", "item"]   # TSV only: names of the fields, in order
    id_base = 16                                                 # TSV only: ids written in base 16 or 10

    places = 20                                                  # number of last ids of a history to use
    [histories]                                                  # Parquet only: columns of lists, oldest first
    item = "items_before"                                        # these ids use the table of `item`
"""

import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rowmill.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Names of the columns to read.

    ``columns`` and ``id_base`` apply only to files without a header (TSV). ``histories`` are pairs of an id column and
    the column with lists of its earlier ids. All lists of a row must be equally long.

    A run whose columns have changed has three more entries, which no schema file has. ``numbers`` are the feature numbers of
    ``ids``; empty: their positions. ``gated`` are the id columns that a wide half reads through a gate, see
    `rowmill.ctr.models.wide_deep`. ``dropped`` are pairs of an earlier id column and its number, which stays taken.
    """

    label: str
    dense: tuple[str, ...]
    ids: tuple[str, ...]
    columns: tuple[str, ...] = ()
    id_base: int = 16
    tasks: tuple[str, ...] = ()
    item_ids: tuple[str, ...] = ()
    histories: tuple[tuple[str, str], ...] = ()
    places: int = 20
    numbers: tuple[int, ...] = ()
    gated: tuple[str, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"schema names column {twice[0]!r} twice: give each column one role")
        if not self.ids:
            raise DataError("schema names no id column: list at least one under 'ids'")
        if self.id_base not in (10, 16):
            raise DataError(
                f"schema: id_base must be 10 or 16, the base of ids in a TSV file, got {self.id_base}"
            )
        unknown = [name for name in (*dict(self.histories), *self.item_ids) if name not in self.ids]
        if unknown:
            raise DataError(
                f"schema: {unknown[0]!r} under 'histories' or 'item_ids' is not an id column: add it to 'ids'"
            )
        if self.places < 1:
            raise DataError(f"schema: places must be at least 1, got {self.places}")
        if self.numbers == tuple(range(len(self.ids))):
            object.__setattr__(self, "numbers", ())
        if not self.columns:
            object.__setattr__(self, "columns", tuple(names))
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise DataError(
                f"schema: column {absent[0]!r} has a role but is not in 'columns': add it there at its position"
            )

    @property
    def names(self) -> list[str]:
        """All columns to read: labels, numeric features, id features, histories."""
        return [*self.labels, *self.dense, *self.ids, *dict(self.histories).values()]

    @property
    def labels(self) -> list[str]:
        """The label, then the labels of further tasks; none in a log without labels, whose `label` is empty."""
        return [self.label, *self.tasks] if self.label else []

    @property
    def targets(self) -> tuple[int, ...]:
        """For every history, the index of its id column in ``ids``."""
        return tuple(self.ids.index(name) for name in dict(self.histories))

    @property
    def id_features(self) -> list[int]:
        """For every id column of a batch (single ids, then places of histories), the index of its feature in ``ids``."""
        places = [target for target in self.targets for _ in range(self.places)]
        return [*range(len(self.ids)), *places]

    @property
    def feature_numbers(self) -> tuple[int, ...]:
        """The number of each of ``ids``, by which a hash tells features apart. It is never given to another feature."""
        return self.numbers or tuple(range(len(self.ids)))

    def as_dict(self) -> dict[str, Any]:
        """All entries as JSON, without those of changed columns where there are none."""
        return {
            name: value for name, value in asdict(self).items() if value or name not in _OF_RUNS
        }


_OF_RUNS = ("numbers", "gated", "dropped")

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
    known = {field.name for field in fields(Schema)} - {*_OF_RUNS}
    for key, value in content.items():
        if key not in known:
            raise DataError(
                f"schema file {path}: unknown key {key!r}; known keys: {', '.join(sorted(known))}"
            )
        if key == "histories":
            content[key] = _histories(value, path)
            continue
        is_list = key in ("dense", "ids", "columns", "tasks", "item_ids")
        is_number = key in ("id_base", "places")
        expected = (
            "a list of column names" if is_list else "a number" if is_number else "a column name"
        )
        items: list[Any] = value if is_list and isinstance(value, list) else [value]
        wanted = int if is_number else str
        if is_list != isinstance(value, list) or not all(
            isinstance(item, wanted) for item in items
        ):
            raise DataError(f"schema file {path}: {key} must be {expected}, got {value!r}")
        if is_list:
            content[key] = tuple(items)
    for key in ("label", "dense", "ids"):
        if key not in content:
            raise DataError(f"schema file {path} lacks the key {key!r}: add it")
    return Schema(**content)


def schema_from(content: dict[str, Any]) -> Schema:
    """The schema of a file of a run, which has its fields as JSON."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    values["histories"] = tuple((column, of) for column, of in content["histories"])
    values["dropped"] = tuple((column, number) for column, number in content.get("dropped", ()))
    return Schema(**values)


def _histories(value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(isinstance(column, str) for column in value.values()):
        raise DataError(
            f"schema file {path}: histories must be a table of id columns and their columns of lists, such as "
            f'[histories] item = "items_before", got {value!r}'
        )
    return tuple(value.items())
