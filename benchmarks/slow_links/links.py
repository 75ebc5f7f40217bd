"""A network on one machine: a namespace for each rank, joined by links of a given rate.

Every namespace has one link to a bridge, which has a namespace of its own. Both directions of a link go through a token
bucket (`tc tbf`), so a link has its rate, and a message waits for those before it in the queue: latency comes from the queue
alone, which holds so many milliseconds. Needs root, `ip` and `tc`.
"""

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_MS = 50
"""What the queue of a link holds; more is dropped, and TCP slows down."""
BURST_BYTES = 64 << 10
"""What may leave at once: as much as one segment that the kernel hands down whole."""


@dataclass(frozen=True)
class Network:
    """Namespaces and their addresses, by rank."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    interface: str = "eth0"

    def command(self, rank: int, arguments: Sequence[str]) -> list[str]:
        """What runs these arguments within the namespace of a rank."""
        return ["ip", "netns", "exec", self.names[rank], *arguments]


def missing() -> str | None:
    """Why there can be no such network here, if so."""
    if os.geteuid() != 0:
        return "links of namespaces need root"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(tool) is None:
            return f"no {tool}: apt install {package}"
    return None


@contextmanager
def network(ranks: int, rate: str) -> Generator[Network]:
    """A network of so many ranks, with links of a rate as `tc` writes it ("1gbit"); removed at the end.

    Raises:
        RuntimeError: The kernel cannot do it.
    """
    stem = f"rowmill{os.getpid()}"
    switch = f"{stem}s"
    made = Network(
        tuple(f"{stem}r{rank}" for rank in range(ranks)),
        tuple(f"10.71.0.{rank + 1}" for rank in range(ranks)),
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
