"""Versions of a store: checkpoints that are kept when later ones are made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from rowmill import _core
from rowmill.size import check_int

if TYPE_CHECKING:
    import os

VERSIONS_MAX = 1000


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """Makes a checkpoint a version; an argument of `Store.checkpoint`.

    Attributes:
        name: Name of the version; it must not be a number. An older version of this name is dropped.
        keep: Number of versions to keep, this one included, 1 to 1000. The oldest are dropped first.
        step: Step of the run, for information.
        metric: A finite number to compare versions by.
        best: "highest" or "lowest": the version with the best metric is kept, however old it is.
    """

    name: str
    keep: int
    step: int | None = None
    metric: float | None = None
    best: Literal["highest", "lowest"] | None = None

    def __post_init__(self) -> None:
        check_int(self.keep, "keep", 1, VERSIONS_MAX)
        if self.step is not None:
            check_int(self.step, "step", 0, 2**63 - 1)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, as the binding takes them."""
        return asdict(self)


def versions(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The versions of the store in a folder, oldest first; another process may have it open.

    Returns:
        For each, `number` (of the checkpoint), `name`, `made_s` (seconds since 1970), `step`, `metric`, `rows`, and
        `bytes_alone`: the bytes of rows and files that only this version keeps.
    """
    return _core.versions(str(path))


def rollback(path: str | os.PathLike[str], version: str) -> int:
    """Make a version the last checkpoint of the store in a folder that no process has open for writing.

    It writes one file, independent of the size of the store. Later versions are kept.

    Args:
        path: Folder of the store.
        version: Name or checkpoint number of the version.

    Returns:
        The number of the new checkpoint.

    Raises:
        InvalidInput: There is no such version; the message lists those that exist.
        StoreLocked: Another process has the store open for writing.
    """
    return _core.rollback(str(path), version)


def drop_version(path: str | os.PathLike[str], version: str) -> None:
    """Drop a version of the store in a folder that no process has open for writing; raises as `rollback`."""
    _core.drop_version(str(path), version)
