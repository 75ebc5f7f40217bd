"""Backends of torch.distributed for ranks on this machine: installed where missing, and the variables that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks import common
from tools.locked import locked_folder, with_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

ONECCL = common.REPOSITORY / "python/tests/distributed/oneccl/packages.lock"


def install(backends: Iterable[str]) -> None:
    """Install the packages of backends that come from a lock file of their own; call it before long measurements."""
    if "oneccl" in backends:
        locked_folder("oneccl", ONECCL)


def backend_environment(backend: str, interface: str) -> dict[str, str]:
    """Variables by which a backend finds its packages and uses an interface."""
    if backend == "gloo":
        return {"GLOO_SOCKET_IFNAME": interface}
    return {
        "PYTHONPATH": with_folder(locked_folder("oneccl", ONECCL)),
        "FI_TCP_IFACE": interface,
        "CCL_KVS_IFACE": interface,
    }
