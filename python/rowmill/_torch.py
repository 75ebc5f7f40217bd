"""Parts of rowmill that need a newer torch than the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rowmill.errors import TorchTooOld

if TYPE_CHECKING:
    from types import TracebackType


class torch_since:
    """Block of imports that need a newer torch than the rest of rowmill.

        with torch_since("2.11", "export"):
            from torch.export.passes import move_to_device_pass

    Args:
        version: The oldest torch that works.
        what: What needs it; the subject of the message.

    Raises:
        TorchTooOld: torch is older.
    """

    def __init__(self, version: str, what: str) -> None:
        self._version = version
        self._what = what

    def __enter__(self) -> None:
        if torch.__version__ < self._version:  # a TorchVersion, which compares the numbers
            raise TorchTooOld(
                f"{self._what} needs torch {self._version} or newer, got {torch.__version__}"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass
