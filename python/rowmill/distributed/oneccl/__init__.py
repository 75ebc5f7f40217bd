"""oneCCL under torch.distributed: `torch.distributed.init_process_group("oneccl")`.

torch finds `register` by the entry point of this package, so nothing need be imported. With `pip install
rowmill[oneccl]`; no launcher of MPI is needed.
"""

from __future__ import annotations

import torch.distributed as dist

from rowmill.distributed.oneccl import library
from rowmill.distributed.oneccl.backend import Backend, Work, calls

__all__ = ["Backend", "Work", "calls", "register"]


def register() -> None:
    """Make the name `oneccl` known to torch.distributed.

    Raises:
        BackendMissing: oneCCL is not installed; on every rank, before any waits for another.
    """
    library.prefix()
    dist.Backend.register_backend("oneccl", Backend, devices=["cpu"])
