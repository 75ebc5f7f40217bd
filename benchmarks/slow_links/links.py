"""A network on one machine: a network namespace per rank, joined by links of a given rate.

Every namespace has one link to a bridge in a namespace of its own. Both directions of a link pass a token bucket filter
(`tc tbf`), which limits the rate; messages queue behind each other. So latency comes only from the queue, which holds a
fixed number of milliseconds. Needs root, `ip` and `tc`.
"""

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_MS = 50
"""Size of a link's queue in milliseconds. More is dropped, and TCP slows down."""
BURST_BYTES = 64 << 10
"""Bytes that may be sent at once: the largest segment that the kernel passes on whole."""


@dataclass(frozen=True)
class Network:
    """Namespaces and their addresses, by rank."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    switch: str
    interface: str = "eth0"

    def command(self, rank: int, arguments: Sequence[str]) -> list[str]:
        """The command that runs `arguments` in the namespace of a rank."""
        return ["ip", "netns", "exec", self.names[rank], *arguments]

    def cut(self, rank: int) -> None:
        """Lose everything that the link of a rank carries, without a sign to either end."""
        _run(f"ip -n {self.switch} link set port{rank} nomaster")

    def mend(self, rank: int) -> None:
        """Carry messages again."""
        _run(f"ip -n {self.switch} link set port{rank} master bridge")


def missing() -> str | None:
    """The reason why such a network cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(tool) is None:
            return f"{tool} is missing: run apt install {package}"
    return None


@contextmanager
def network(ranks: int, rate: str) -> Generator[Network]:
    """Make a network for `ranks` ranks with links of a rate in the form of `tc` ("1gbit"); it is removed at the end.

    Raises:
        RuntimeError: The kernel does not support it.
    """
    stem = f"rowmill{os.getpid()}"
    switch = f"{stem}s"
    made = Network(
        tuple(f"{stem}r{rank}" for rank in range(ranks)),
        tuple(f"10.71.0.{rank + 1}" for rank in range(ranks)),
        switch,
    )
    try:
        _run(f"ip netns add {switch}")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for rank, (name, address) in enumerate(zip(made.names, made.addresses, strict=True)):
            _run(f"ip netns add {name}")
            port, end = f"port{rank}", made.interface
            _run(f"ip link add {port} netns {switch} type veth peer name {end} netns {name}")
            _run(f"ip -n {switch} link set {port} master bridge up")
            _run(f"ip -n {name} address add {address}/24 dev {end}")
            _run(f"ip -n {name} link set {end} up")
            _run(f"ip -n {name} link set lo up")
            bucket = f"root tbf rate {rate} burst {BURST_BYTES} latency {QUEUE_MS}ms"
            _run(f"tc -n {name} qdisc add dev {end} {bucket}")
            _run(f"tc -n {switch} qdisc add dev {port} {bucket}")
        yield made
    finally:
        for name in (*made.names, switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
