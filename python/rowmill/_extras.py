"""Imports of packages that only an extra of rowmill installs, such as `pip install 'rowmill[train]'`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rowmill.errors import ExtraMissing

if TYPE_CHECKING:
    from types import TracebackType


class extra:
    """Block of imports; a package that is missing raises an error which names the extra.

        with extra("train"):
            import pyarrow as pa

    Args:
        name: The extra, as in `pyproject.toml`.

    Raises:
        ExtraMissing: A package that the block imports is not installed.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, ModuleNotFoundError):
            raise ExtraMissing(
                f"{error.name} is not installed: pip install 'rowmill[{self._name}]'",
                name=error.name,
            ) from error
