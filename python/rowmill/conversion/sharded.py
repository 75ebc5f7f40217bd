"""The replacements of a model's embeddings whose rows are sharded over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.conversion.sharded_modules import put_shared, sharded_collection, sharded_module
from rowmill.distributed.placement import table_placements
from rowmill.integrations.torchrec.collections import keyed_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from rowmill.conversion.sharded_modules import ShardedModule
    from rowmill.distributed import Ranks, ShardedCollection
    from rowmill.distributed.placement import Placement, PlacementSetting
    from rowmill.integrations.torchrec.collections import KeyedCollection
    from rowmill.store.tables import Table


def sharded_twins(
    sources: Mapping[str, nn.Embedding | nn.EmbeddingBag],
    collections: Mapping[str, KeyedCollection],
    make_tables: Callable[[], dict[str, Table]],
    ranks: Ranks,
    placement: PlacementSetting | None,
) -> dict[str, nn.Module]:
    """The replacements by path, with the weights of rank 0 in the stores of all ranks. A collective.

    Args:
        sources: All embedding modules by path, those of collections included.
        collections: TorchRec's collections by path.
        make_tables: Makes the table of every embedding module in this rank's store.
        ranks: The ranks over which rows are sharded.
        placement: As for `ShardedCollection`, for the tables of the whole model.
    """

    def make() -> tuple[tuple[dict[str, Table], dict[Table, Placement]], dict[str, object]]:
        tables = make_tables()
        placed = table_placements(list(tables.values()), ranks.count, placement)
        shapes = {path: (list(of.weight.shape), of.weight.is_meta) for path, of in sources.items()}
        trained = {path: of.weight.requires_grad for path, of in sources.items()}
        return (tables, placed), {"the weights": shapes, "frozen modules": trained}

    tables, placed = ranks.agree(make, "the conversion")
    # A rank may keep no row of a table of which other ranks have rows.
    counts = ranks.gather({path: len(table) for path, table in tables.items()})
    copied = {
        table: sources[path].weight
        for path, table in tables.items()
        if not sources[path].weight.is_meta and not any(count[path] for count in counts)
    }
    twins: dict[str, nn.Module] = {}
    sharded: dict[Table, ShardedCollection] = {}

    def add(path: str, twin: ShardedModule, like: nn.Module, trains: bool) -> None:
        twin.rows.frozen = not trains
        twin.train(like.training)
        twins[path] = twin
        sharded.update(dict.fromkeys(twin.rows.stored_tables().values(), twin.rows))

    for path, collection in collections.items():
        keyed = keyed_tables(path, collection, tables)
        trains = any(table.weight.requires_grad for table in collection.inner.values())
        add(path, sharded_collection(keyed, collection, ranks, placed), collection.module, trains)
    inside = {inner for path, found in collections.items() for inner in found.paths(path)}
    for path, source in sources.items():
        if path not in inside:
            twin = sharded_module(source, tables[path], ranks, placed)
            add(path, twin, source, source.weight.requires_grad)
    put_shared(copied, sharded, ranks)
    return twins
