"""Two network namespaces, joined by a pair of virtual Ethernet devices without a limit of their own. Needs root and `ip`."""

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Namespaces:
    """The two ends."""

    names: tuple[str, str]
    addresses: tuple[str, str] = ("10.72.0.1", "10.72.0.2")

    def inside(self, end: int) -> tuple[str, ...]:
        """Prefix of commands that run in one of them."""
        return ("ip", "netns", "exec", self.names[end])


def missing() -> str | None:
    """Why they cannot be made here, if so."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "no ip: apt install iproute2"
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or None


@contextmanager
def namespaces() -> Generator[Namespaces]:
    """Make them; they are removed at the end.

    Raises:
        RuntimeError: The kernel cannot do it.
    """
    stem = f"rowmill{os.getpid()}"
    made = Namespaces((f"{stem}a", f"{stem}b"))
    try:
        for name in made.names:
            _run(f"ip netns add {name}")
        first, second = made.names
        _run(f"ip link add eth0 netns {first} type veth peer name eth0 netns {second}")
        for name, address in zip(made.names, made.addresses, strict=True):
            _run(f"ip -n {name} address add {address}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")
        yield made
    finally:
        for name in made.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
