"""A checkpoint of all ranks that one process writes into a new folder."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zlib import crc32

from rowmill.distributed._checkpoint.checkpoint import PART, pack_state, part_folder, state_file
from rowmill.distributed._checkpoint.manifest import write_durable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rowmill.distributed._checkpoint.manifest import Manifest
    from rowmill.store.store import Store

_NUMBER = 1
_GENERATION = 1


class NewCheckpoint:
    """The first checkpoint in a folder, for the ranks and placements of another checkpoint.

    Save the part of each rank in the order of ranks, then call `save`. Before that there is no checkpoint.

    Args:
        folder: The new folder.
        like: The manifest of the other checkpoint.
    """

    def __init__(self, folder: Path, like: Manifest) -> None:
        self._folder = folder
        self._like = like
        self._id = f"{uuid4().hex}-{_NUMBER}"
        self._epochs: list[int] = []

    def next_part(self) -> Path:
        """The folder for the store of the next rank."""
        return part_folder(self._folder, _GENERATION, len(self._epochs))

    def save_part(self, store: Store) -> None:
        """Save the store in this folder."""
        part = json.dumps({"id": self._id, "rank": len(self._epochs)}).encode()
        self._epochs.append(store.checkpoint(attachments={PART: part})["epoch"])

    def save(self, state: Mapping[str, Any], position: Any) -> None:
        """Make all parts the checkpoint.

        Args:
            state: As `saved_state` returns it.
            position: The position in the data.
        """
        packed = pack_state(state)
        write_durable(state_file(self._folder, _NUMBER), packed)
        replace(
            self._like,
            id=self._id,
            number=_NUMBER,
            generation=_GENERATION,
            epochs=self._epochs,
            position=position,
            state_bytes=len(packed),
            state_crc=crc32(packed),
        ).save(self._folder)
