"""Integer handles of tables, because the graph of a registered operator cannot hold Python objects.

The registry is weak: a handle is valid as long as its table object exists, and is never reused.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    from rowmill.store.tables import Table

_tables: WeakValueDictionary[int, Table] = WeakValueDictionary()
_numbers = itertools.count(1)


def register(table: Table) -> int:
    """Give a table a new handle."""
    handle = next(_numbers)
    _tables[handle] = table
    return handle


def table_of(handle: int) -> Table:
    """The table of a handle; raise `InvalidInput` if the table object no longer exists."""
    table = _tables.get(handle)
    if table is None:
        raise InvalidInput(
            f"no open table has handle {handle}: run an exported graph in the process that exported "
            "it, while the store is open"
        )
    return table
