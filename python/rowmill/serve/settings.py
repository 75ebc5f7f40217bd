"""Settings of a worker: a TOML file, and flags of the command line that override it."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, cast

from rowmill.errors import InvalidInput
from rowmill.size import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Role = Literal["all", "dense", "cpu"]
_SIZES = ("memory", "wire_memory", "request_max")


@dataclass(frozen=True)
class ServeSettings:
    """How a worker serves.

    Attributes:
        role: "all", both halves in this process; "dense", the dense half at `listen`; "cpu", the CPU half, which asks the
            dense half at `dense`.
        listen: Where a dense half listens: `tcp://HOST:PORT` or `shm:///PATH`.
        dense: Address of the dense half, for a CPU half.
        rows: Storage node that has the rows of the models, `nvme+tcp://HOST:PORT/NQN`; None: the rows of the bundles.
        access: TOML file with name and keys of this host, for `rows`; see `rowmill.open`.
        host: Address at which clients connect.
        http_port: Port of HTTP; 0 takes a free one.
        grpc_port: Port of gRPC; 0 takes a free one.
        metrics_port: Port of metrics, of every role; 0 takes a free one.
        device: Where the dense half runs: "cpu", "cuda" or "cuda:NUMBER".
        insecure: Allow addresses that other machines reach, without encryption.
        memory: Bytes for rows of each model in memory.
        wire_memory: Bytes for tensors of requests and replies.
        request_max: Bytes of a request.
        slo: Seconds in which requests without a timeout are answered.
        drain: Seconds that open requests get when the worker ends.
        preload: Read rows into memory before the worker is ready, as far as `memory` allows.
        warm_up: Seconds until the models must have answered their examples.
        lookup_threads: Threads that run CPU halves; 0: one per core. Fewer work at once where batches need the cores, unless
            `dense_batches` is fixed.
        network_threads: Threads that wait for sockets; 0: one for two cores.
        dense_batches: Batches that run at once on a CPU, each on its share of the cores; 0: as many as there are cores, or fewer
            where other work of the worker needs the cores. A GPU runs one.
        batch_requests: Requests that the dense half runs together at most; 1: no batching; 0: 16 on a CPU, 32 on a GPU.
        batch_rows: Rows that it runs together at most.
        queue_requests: Requests that wait for a half at most.
        log_level: "error", "warn", "info", "debug", "trace" or "off".
    """

    role: Role = "all"
    listen: str | None = None
    dense: str | None = None
    rows: str | None = None
    access: str | None = None
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    device: str = "cpu"
    insecure: bool = False
    memory: int = 256 << 20
    wire_memory: int = 256 << 20
    request_max: int = 64 << 20
    slo: float = 1.0
    drain: float = 30.0
    preload: bool = False
    warm_up: float = 120.0
    lookup_threads: int = 0
    network_threads: int = 0
    dense_batches: int = 0
    batch_requests: int = 0
    batch_rows: int = 4096
    queue_requests: int = 1024
    log_level: str = "info"

    def __post_init__(self) -> None:
        if self.role not in ("all", "dense", "cpu"):
            raise InvalidInput(f'role must be "all", "dense" or "cpu", got {self.role!r}')
        for key, role in (("listen", "dense"), ("dense", "cpu")):
            address = getattr(self, key)
            if self.role == role and address is None:
                raise InvalidInput(
                    f"role {role!r} needs an address in {key}: tcp://HOST:PORT or shm:///PATH"
                )
            if self.role != role and address is not None:
                raise InvalidInput(
                    f"{key} is {address!r} and role is {self.role!r}: only role {role!r} has {key}"
                )
        if self.rows is not None and self.role == "dense":
            raise InvalidInput(
                f'rows is {self.rows!r} and role is "dense", which reads no rows: give rows to the CPU half'
            )
        if self.preload and self.role == "dense":
            raise InvalidInput(
                'preload is set and role is "dense", which reads no rows: give it to the CPU half'
            )
        if self.access is not None and self.rows is None:
            raise InvalidInput(f"access is {self.access!r}, for the node in rows: set rows")
        if self.rows is not None and self.preload:
            raise InvalidInput(
                "preload reads rows of bundles into memory, not those of a node: remove it"
            )
        if re.fullmatch(r"cpu|cuda(:\d+)?", self.device) is None:
            raise InvalidInput(
                f'device must be "cpu", "cuda" or "cuda:NUMBER", got {self.device!r}'
            )
        if self.device != "cpu" and self.dense_batches > 1:
            raise InvalidInput(
                f"dense_batches is {self.dense_batches} and device is {self.device!r}: a GPU runs one batch at a time, "
                "so remove dense_batches"
            )
        if self.device != "cpu" and self.role == "cpu":
            raise InvalidInput(
                f'device is {self.device!r}, and role "cpu" has no dense half: give device to the dense worker'
            )
        for key in ("slo", "drain", "warm_up"):
            if not 0 < getattr(self, key) <= 86_400:
                raise InvalidInput(
                    f"{key} must be above 0 and at most 86400 seconds, got {getattr(self, key)}"
                )
        limits = {
            "http_port": (0, 65_535),
            "grpc_port": (0, 65_535),
            "metrics_port": (0, 65_535),
            "lookup_threads": (0, 1024),
            "network_threads": (0, 1024),
            "dense_batches": (0, 1024),
            "batch_requests": (0, 65_536),
            "batch_rows": (1, 2**31),
            "queue_requests": (1, 1 << 20),
            "wire_memory": (1 << 20, 1 << 43),
            "request_max": (1024, 1 << 40),
        }
        for key, (least, most) in limits.items():
            if not least <= getattr(self, key) <= most:
                raise InvalidInput(
                    f"{key} must be from {least} to {most}, got {getattr(self, key)}"
                )

    @property
    def threads(self) -> int:
        """Threads that run CPU halves."""
        return self.lookup_threads or _cores()

    @property
    def sockets(self) -> int:
        """Threads that wait for sockets."""
        return self.network_threads or max(1, _cores() // 2)

    @property
    def batches(self) -> int:
        """Batches that run at once at most."""
        return (self.dense_batches or _cores()) if self.device == "cpu" else 1

    @property
    def batch_requests_max(self) -> int:
        """Requests of a batch at most."""
        return self.batch_requests or (16 if self.device == "cpu" else 32)

    @property
    def torch_threads(self) -> int:
        """Threads of torch for each batch that runs on a CPU."""
        return max(1, _cores() // self.batches)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def read_settings(file: Path | None, flags: Mapping[str, Any]) -> ServeSettings:
    """Settings of a file, where given, each replaced by the flag of its name where that is given.

    Raises:
        InvalidInput: A setting is unknown or has a wrong value; names it.
    """
    given: dict[str, Any] = {}
    if file is not None:
        try:
            given = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{file} is not a TOML file: {error}") from None
    given |= flags
    defaults: dict[str, Any] = {field.name: field.default for field in fields(ServeSettings)}
    for key, value in given.items():
        if key not in defaults:
            raise InvalidInput(f"unknown setting {key!r}: the settings are {', '.join(defaults)}")
        if key in _SIZES:
            given[key] = parse_size(value, name=key)
            continue
        default: Any = defaults[key]
        kind = cast("type", str if default is None else type(default))
        accepted: tuple[type, ...] = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise InvalidInput(f"{key} must be of type {kind.__name__}, got {value!r}")
    return ServeSettings(**given)
