"""The command `rowmill serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.cli.subcommand import add_command
from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

    from rowmill.serve.files import BundleFiles

_FLAGS: dict[str, tuple[Any, str, str]] = {
    "role": (
        str,
        "all|cpu|dense",
        "what this process runs: cpu = row lookups and pooling, dense = dense layers, all = both (default all)",
    ),
    "listen": (
        str,
        "ADDRESS",
        "role dense: where to listen, tcp://HOST:PORT or shm:///PATH, a new socket in an existing folder",
    ),
    "dense": (str, "ADDRESS", "role cpu: where the dense half listens"),
    "rows": (
        str,
        "URL",
        "storage node that has the rows, nvme+tcp://HOST:PORT/NQN (default: the rows of the bundles)",
    ),
    "access": (str, "FILE", "with --rows: TOML file with name and keys of this host"),
    "host": (str, "HOST", "address at which clients connect (default 127.0.0.1)"),
    "http_port": (int, "PORT", "port of HTTP; 0: any free port (default 8000)"),
    "grpc_port": (int, "PORT", "port of gRPC; 0: any free port (default 8001)"),
    "metrics_port": (int, "PORT", "port of /metrics and /healthz; 0: any free port (default 8002)"),
    "device": (str, "DEVICE", "where the dense half runs: cpu, cuda or cuda:NUMBER (default cpu)"),
    "memory": (
        str,
        "SIZE",
        "memory budget of the rows of each model, including their index (default 256MiB)",
    ),
    "wire_memory": (str, "SIZE", "memory for tensors of requests and replies (default 256MiB)"),
    "request_max": (str, "SIZE", "largest request (default 64MiB)"),
    "slo": (float, "SECONDS", "deadline of requests that have no timeout (default 1)"),
    "drain": (float, "SECONDS", "time that open requests get after SIGTERM (default 30)"),
    "warm_up": (
        float,
        "SECONDS",
        "time in which the models must answer their examples at the start (default 120)",
    ),
    "lookup_threads": (int, "N", "threads that run CPU halves (default: one per core)"),
    "network_threads": (int, "N", "threads that wait for sockets (default: one for two cores)"),
    "dense_batches": (
        int,
        "N",
        "batches that run at once on a CPU (default: by load, at most one per core)",
    ),
    "batch_requests": (
        int,
        "N",
        "largest batch of the dense half, in requests; 1: no batching (default 16 on a CPU, 32 on a GPU)",
    ),
    "batch_rows": (int, "N", "largest batch of the dense half, in rows (default 4096)"),
    "queue_requests": (
        int,
        "N",
        "most requests that wait for a half; more are refused (default 1024)",
    ),
    "log_level": (str, "LEVEL", "error, warn, info, debug, trace or off (default info)"),
}


def add_serve(commands: Any) -> None:
    """Add `rowmill serve` to the commands."""
    parser = add_command(
        commands, "serve", "answer requests to exported models by the Open Inference Protocol"
    )
    parser.add_argument(
        "bundles",
        nargs="+",
        metavar="[NAME=]BUNDLE",
        help="folder that rowmill export wrote, and a name for its model (default: name of the folder)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="TOML file with settings; flags override it"
    )
    for key, (kind, metavar, text) in _FLAGS.items():
        flag = f"--{key.replace('_', '-')}"
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow addresses other than loopback; connections are neither encrypted nor authenticated",
    )
    parser.add_argument(
        "--preload",
        action="store_true",
        default=None,
        help="read rows into memory before the worker is ready, as far as --memory allows",
    )
    parser.set_defaults(command=_serve, interrupted="")


def _serve(parsed: argparse.Namespace) -> int:
    from rowmill.serve.settings import read_settings
    from rowmill.serve.worker import serve

    flags = {key: getattr(parsed, key) for key in (*_FLAGS, "insecure", "preload")}
    settings = read_settings(
        parsed.config, {key: value for key, value in flags.items() if value is not None}
    )
    serve([_bundle(text) for text in parsed.bundles], settings)
    return 0


def _bundle(text: str) -> BundleFiles:
    from rowmill.serve.files import BundleFiles

    name, separator, folder = text.partition("=")
    path = Path(folder if separator else text)
    name = name if separator else path.resolve().name
    if not name or "/" in name:
        raise InvalidInput(f"{text!r} has no valid name for its model: write NAME=FOLDER")
    return BundleFiles.open(path, name)
