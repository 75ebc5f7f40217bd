"""`SavedNames`: names and numbers of entities and relations of a run that is continued with new triples.

Known entities and relations keep their numbers, and new ones follow. The reciprocal of relation r has the row `relations + r`, so
the rows of reciprocals move when relations are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rowmill.errors import DataError
from rowmill.kge.names import NAME_FILES, Names
from rowmill.train.found_run import saved_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rowmill.config.config import Config
    from rowmill.store.tables import Table


@dataclass(frozen=True)
class SavedNames:
    """Names by number, as Arrow arrays, at the last checkpoint."""

    entities: Any
    relations: Any

    @classmethod
    def found(cls, config: Config) -> Self | None:
        """The names of the run that is continued; None for a run that has only its first data.

        Raises:
            DataError: A checkpoint of an older build has no names, and the folder of the run lacks them.
        """
        saved = saved_run(config)
        if saved is None:
            return None
        counts = [saved.identity.get(name) for name in ("entities", "relations")]
        if None in counts or not (config.train.continues or saved.state.parts):
            return None
        found: list[Any] = []
        for kind, count in zip(NAME_FILES, counts, strict=True):
            names = Names.of_run(kind, count or 0, saved.file, config.train.out)
            if names is None:
                raise DataError(
                    f"{config.train.out / NAME_FILES[kind]} is missing or has fewer than the {count:,} names of the run, "
                    "which new triples need: restore it from a copy"
                )
            found.append(names.names)
        return cls(*found)


def move_reciprocals(relations: Table, before: int, after: int) -> None:
    """Move the rows of reciprocal relations to their new numbers, after relations were added."""
    put_reciprocals(relations, *take_reciprocals(relations, before), moved_by=after - before)


def take_reciprocals(
    relations: Table, before: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    """Delete the rows of the reciprocals of this many relations, and return their ids, weights and state."""
    ids = np.arange(before, 2 * before)
    existing = ids[np.asarray(relations.contains(ids))]
    weights, state = relations.get(existing), relations.get_state(existing)
    relations.delete(existing)
    return existing, np.asarray(weights), np.asarray(state)


def put_reciprocals(
    relations: Table,
    ids: NDArray[np.int64],
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    *,
    moved_by: int,
) -> None:
    """Write rows that `take_reciprocals` returned at larger ids."""
    relations.put(ids + moved_by, weights)
    relations.put_state(ids + moved_by, state)
