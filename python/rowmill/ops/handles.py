"""Tables as integers, the only form in which a registered operator's graph can carry them.

The registry is weak: a handle lives as long as its table object, and is never used again.
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
    """A new handle of a table."""
    handle = next(_numbers)
    _tables[handle] = table
    return handle


def table_of(handle: int) -> Table:
    """The table of a handle."""
    table = _tables.get(handle)
    if table is None:
        raise InvalidInput(
            f"no open table has handle {handle}: an exported graph runs in the process that exported "
            "it, while the store is open"
        )
    return table
