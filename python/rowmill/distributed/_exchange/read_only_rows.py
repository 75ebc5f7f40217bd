"""Check that the rows of read-only tables are in the stores where they will be looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.distributed._exchange.category import category_of
from rowmill.distributed.ranks import raise_first, spell
from rowmill.errors import InvalidInput
from rowmill.ops.exchange.owner_hash import hashed, owner, states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rowmill.distributed.ranks import Ranks
    from rowmill.store.tables import Table

SAMPLE_ROWS = 1024
"""Most rows of each table that a rank checks."""

_Elsewhere = dict[str, list[list[int]]]
"""By table, for every rank the ids that it owns, of rows in the store of this rank."""


def check_read_only_rows(tables: Sequence[Table], ranks: Ranks) -> None:
    """Check a sample of rows: the rank that owns an id must have its row, for most ids. A collective.

    That holds for one store that every rank opens, and for the stores that as many ranks wrote with the placements `rows`,
    `pooled` or `replicated`. Of other stores, rows would be looked up where they are missing.

    Args:
        tables: Tables of read-only stores, the same ones on all ranks.
        ranks: The ranks of the collection.

    Raises:
        InvalidInput: On every rank, if most of a rank's rows are missing where they will be looked up.
        ExchangeFailed: On every rank, if a rank cannot read its store.
    """
    if not tables or ranks.count == 1:
        return
    failure: Exception | None = None
    elsewhere: _Elsewhere = {}
    try:
        elsewhere = {table.name: _by_owner(table, ranks) for table in tables}
    except Exception as error:
        failure = error
    said = ranks.gather((elsewhere, None if failure is None else spell(failure)))
    raise_first([failed for _, failed in said], failure)
    try:
        for holder, (theirs, _) in enumerate(said):
            for table in tables:
                _check(table, theirs[table.name][ranks.rank], holder, ranks)
    except Exception as error:
        failure = error
    raise_first(ranks.gather(None if failure is None else spell(failure)), failure)


def _by_owner(table: Table, ranks: Ranks) -> list[list[int]]:
    for ids, _ in table.scan(batch_rows=SAMPLE_ROWS):
        ids_N = torch.from_numpy(ids.copy())
        owners_N = owner(hashed(ids_N, states([category_of(table.name)])), ranks.count)
        return [
            [] if rank == ranks.rank else ids_N[owners_N == rank].tolist()
            for rank in range(ranks.count)
        ]
    return [[] for _ in range(ranks.count)]


def _check(table: Table, ids: list[int], holder: int, ranks: Ranks) -> None:
    missing = [id_ for id_, is_here in zip(ids, table.contains(ids), strict=True) if not is_here]
    # Ranks that opened a store while it is trained may see different checkpoints, which differ in few rows.
    if 2 * len(missing) > len(ids):
        raise InvalidInput(
            f"row {missing[0]} of the read-only table {table.name!r} is in the store of rank {holder}, and will be looked up in "
            f"that of rank {ranks.rank}, {table.store}, which lacks it: open one store on all ranks, or the stores of a "
            f"run on {ranks.count} ranks whose table has the placement rows, pooled or replicated"
        )
