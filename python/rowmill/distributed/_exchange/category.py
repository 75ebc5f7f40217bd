"""The category number of a table in the owner hash."""

import hashlib


def category_of(name: str) -> int:
    """A hash of the table's name, so that it does not depend on the order in which tables were created."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
