"""Find TorchRec collections in a model by their structure, replace them by stored ones, and convert them back.

TorchRec is never imported: its objects are recognised by their attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from rowmill.errors import InvalidInput
from rowmill.integrations.torchrec.keyed import KeyedBags, KeyedRows, KeyedTable
from rowmill.nn.stored import paths_of, read_weights

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rowmill.store.tables import Table


@dataclass(frozen=True)
class KeyedCollection:
    """A TorchRec collection: `inner` has its tables by name, `configs` their configurations in the same order."""

    module: nn.Module
    kind: Literal["embedding_bags", "embeddings"]
    inner: dict[str, nn.EmbeddingBag | nn.Embedding]
    configs: list[Any]

    def paths(self, path: str) -> list[str]:
        """The paths of its tables in the model, if the collection is at `path`."""
        return [f"{path}.{self.kind}.{config.name}" for config in self.configs]

    def forget_weights(self) -> None:
        """Move the weights to the meta device, which frees their memory."""
        for table in self.inner.values():
            weight = table.weight
            table.weight = nn.Parameter(weight.detach().to("meta"), weight.requires_grad)


def _as_collection(module: nn.Module) -> KeyedCollection | None:
    """The collection, if the module has its structure: tables in a ModuleDict and methods for the configuration."""
    kinds: list[tuple[Literal["embedding_bags", "embeddings"], str, str, type[nn.Module]]] = [
        ("embedding_bags", "embedding_bag_configs", "is_weighted", nn.EmbeddingBag),
        ("embeddings", "embedding_configs", "need_indices", nn.Embedding),
    ]
    for kind, method, option, type_ in kinds:
        inner, configs = getattr(module, kind, None), getattr(module, method, None)
        if not isinstance(inner, nn.ModuleDict) or not callable(configs):
            continue
        if not callable(getattr(module, option, None)):
            continue
        found: Any = configs() or ()
        tables: dict[str, Any] = dict(inner.items())
        names = [
            getattr(config, "name", None) for config in found if hasattr(config, "feature_names")
        ]
        if names == list(tables) and all(type(table) is type_ for table in tables.values()):
            return KeyedCollection(module, kind, tables, list(found))
    return None


def collections_of(model: nn.Module, skip: Collection[str]) -> dict[str, KeyedCollection]:
    """The collections of a model by path, without the skipped ones.

    Raises:
        InvalidInput: A collection cannot be replaced; names its path and the fix.
    """
    found: dict[str, KeyedCollection] = {}
    for path, module in paths_of(model, remove_duplicate=False):
        collection = None if matches(path, skip) else _as_collection(module)
        if collection is None:
            continue
        if path == "":
            raise InvalidInput(
                "the model is itself a collection, which cannot be replaced in place: make it an attribute of a module"
            )
        for config, inner in zip(collection.configs, collection.paths(path), strict=True):
            if matches(inner, skip):
                raise InvalidInput(
                    f"skip names {inner}, but a collection is converted as a whole: skip all of it with skip=[{path!r}]"
                )
            if getattr(config, "use_virtual_table", False):
                raise InvalidInput(
                    f"{inner}: use_virtual_table = True is not supported; set it to False (a stored table holds any "
                    "number of ids)"
                )
        found[path] = collection
    return found


def keyed_tables(
    path: str, collection: KeyedCollection, tables: Mapping[str, Table]
) -> list[KeyedTable]:
    """The tables of the collection at `path`; `tables` has a table for the path of each of its modules."""
    used = [name for config in collection.configs for name in config.feature_names]
    return [
        KeyedTable(
            name=config.name,
            table=tables[inner],
            num_embeddings=collection.inner[config.name].num_embeddings,
            features=tuple(config.feature_names),
            # As in TorchRec, the vectors of a feature of several tables are named feature@table.
            outputs=tuple(
                name if used.count(name) == 1 else f"{name}@{config.name}"
                for name in config.feature_names
            ),
            pooling=getattr(collection.inner[config.name], "mode", "sum"),
        )
        for config, inner in zip(collection.configs, collection.paths(path), strict=True)
    ]


def keyed_twin(
    path: str, collection: KeyedCollection, tables: Mapping[str, Table]
) -> KeyedBags | KeyedRows:
    """The stored replacement of the collection at `path`; `tables` as for `keyed_tables`."""
    keyed = keyed_tables(path, collection, tables)
    source: Any = collection.module
    twin: KeyedBags | KeyedRows
    if collection.kind == "embedding_bags":
        twin = KeyedBags(keyed, source, is_weighted=source.is_weighted())
    else:
        twin = KeyedRows(keyed, source, need_indices=source.need_indices())
    # If only some tables are frozen, these have a learning rate of 0 instead.
    twin.frozen = not any(table.weight.requires_grad for table in collection.inner.values())
    twin.train(collection.module.training)
    return twin


def plain_collection(module: KeyedBags | KeyedRows) -> nn.Module:
    """Convert back: the original collection with the current rows as weights."""
    collection = _as_collection(module.source)
    assert collection is not None, "the source of a stored collection is a collection"
    for keyed in module.tables:
        table, rows = collection.inner[keyed.name], keyed.num_embeddings
        weight = read_weights(keyed.table, rows, "weight", 4 * rows * keyed.table.dim)
        table.weight = nn.Parameter(weight, table.weight.requires_grad)
    return collection.module.train(module.training)


def matches(path: str, patterns: Collection[str]) -> bool:
    """Whether a path matches one of the patterns, as in `fnmatch`."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)
