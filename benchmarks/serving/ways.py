"""The ways to serve one model: whole, and in two halves that are joined by shared memory or TCP."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.namespaces import Namespaces
from benchmarks.serving.worker import Worker, worker

WAYS = ("all", "shm", "tcp", "netns")
"""`all`: one process. The others: two processes, over shared memory, TCP, and TCP between network namespaces."""


@dataclass(frozen=True)
class Deployment:
    """A model that is served.

    Attributes:
        way: One of `WAYS`.
        workers: By role: "all", or "cpu" and "dense".
    """

    way: str
    workers: dict[str, Worker]

    @property
    def front(self) -> Worker:
        """The worker that clients ask."""
        return self.workers["all" if self.way == "all" else "cpu"]


@contextmanager
def deployment(
    way: str,
    bundle: Path,
    folder: Path,
    flags: list[str],
    network: Namespaces | None = None,
    *,
    preload: bool = False,
) -> Generator[Deployment]:
    """Start the workers of a way.

    Args:
        way: One of `WAYS`.
        bundle: What to serve.
        folder: For logs and sockets.
        flags: Of every worker.
        network: For "netns".
        preload: Whether the worker that has the rows reads them into memory before it is ready.
    """
    ports = ["--metrics-port", "0"]
    front = ["--http-port", "0", "--grpc-port", "0", *ports, *flags]
    if preload:
        front.append("--preload")
    log = f"{bundle.name}-{way}"
    with ExitStack() as stack:
        if way == "all":
            all_ = stack.enter_context(worker([bundle, *front], folder / f"{log}.log"))
            yield Deployment(way, {"all": all_})
            return
        inside: list[tuple[str, ...]] = [(), ()]
        listen = "tcp://127.0.0.1:0"
        if way == "shm":
            listen = f"shm://{folder}/{log}.sock"
        elif way == "netns":
            assert network is not None, "made by the caller"
            inside = [network.inside(end) for end in range(2)]
            listen = f"tcp://{network.addresses[1]}:7000"
            ports, front = [*ports, "--insecure"], [*front, "--insecure"]
        dense_flags = ["--role", "dense", "--listen", listen, *ports, *flags]
        dense = stack.enter_context(
            worker([bundle, *dense_flags], folder / f"{log}-dense.log", inside=inside[1])
        )
        cpu_flags = ["--role", "cpu", "--dense", dense.addresses["dense"], *front]
        cpu = stack.enter_context(
            worker([bundle, *cpu_flags], folder / f"{log}-cpu.log", inside=inside[0])
        )
        yield Deployment(way, {"cpu": cpu, "dense": dense})
