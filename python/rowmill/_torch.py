"""Parts of rowmill that need a newer torch than the rest."""

from __future__ import annotations

import torch

from rowmill.errors import TorchTooOld


def need_torch(version: str, what: str) -> None:
    """Raise `TorchTooOld` if torch is older than `version`.

    Args:
        version: The oldest torch that works, such as "2.11".
        what: What needs it; the subject of the message.
    """
    if torch.__version__ < version:  # a TorchVersion, which compares the numbers
        raise TorchTooOld(f"{what} needs torch {version} or newer, got {torch.__version__}")
