"""oneCCL as a backend of torch.distributed: `torch.distributed.init_process_group("oneccl")`.

Install it with `pip install rowmill[oneccl]`. torch finds `register` by the package's entry point, so no import is needed,
and no MPI launcher.
"""

from __future__ import annotations

import torch.distributed as dist

from rowmill.distributed.oneccl import library
from rowmill.distributed.oneccl.backend import Backend, Work, calls

__all__ = ["Backend", "Work", "calls", "register"]


def register() -> None:
    """Register the backend `oneccl` with torch.distributed.

    Raises:
        BackendMissing: oneCCL is not installed. Raised before any rank waits for another.
    """
    library.prefix()
    dist.Backend.register_backend("oneccl", Backend, devices=["cpu"])
