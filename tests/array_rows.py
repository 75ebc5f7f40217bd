"""Rows in an array, as a peer for the loops of benchmarks."""

from typing import Any


class ArrayRows:
    """Rows with the interface of `benchmarks.peer_rows.PeerRows`."""

    keys_max = 1000

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.gets = 0
        self.foretold = 0
        """Number of gets whose keys were announced before."""
        self._announced: dict[int, set[int]] = {}

    def announce(self, keys: Any, steps: int) -> None:
        assert steps >= 1
        self._announced.setdefault(self.gets + steps, set()).update(keys.tolist())

    def get(self, keys: Any) -> Any:
        return self.rows[self.get_places(keys)]

    def get_places(self, keys: Any) -> Any:
        """The row numbers of ascending keys."""
        assert (keys[1:] > keys[:-1]).all()
        self.gets += 1
        self.foretold += self._announced.pop(self.gets, set[int]()) == set(keys.tolist())
        return keys.tolist()

    def put(self, keys: Any, rows: Any, how: str = "put") -> None:
        assert how in ("put", "append")
        assert (keys[1:] > keys[:-1]).all()
        self.rows[keys] = rows

    def settle(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0

    def read_bytes(self) -> int:
        return 0
