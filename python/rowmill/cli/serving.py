"""The command `rowmill serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

    from rowmill.serve.files import BundleFiles

_FLAGS: dict[str, tuple[Any, str, str]] = {
    "role": (str, "all|cpu|dense", "both halves (all), the CPU half, or the dense half (all)"),
    "listen": (str, "ADDRESS", "role dense: where to listen, tcp://HOST:PORT or shm:///PATH"),
    "dense": (str, "ADDRESS", "role cpu: where the dense half listens"),
    "rows": (
        str,
        "URL",
        "storage node that has the rows, nvme+tcp://HOST:PORT/NQN (those of the bundles)",
    ),
    "access": (str, "FILE", "with --rows: TOML file with name and keys of this host"),
    "host": (str, "HOST", "address for clients (127.0.0.1)"),
    "http_port": (int, "PORT", "port of HTTP (8000; 0 takes a free one)"),
    "grpc_port": (int, "PORT", "port of gRPC (8001; 0 takes a free one)"),
    "metrics_port": (int, "PORT", "port of /metrics and /healthz (8002; 0 takes a free one)"),
    "device": (str, "DEVICE", "where the dense half runs: cpu, cuda or cuda:NUMBER (cpu)"),
    "memory": (str, "SIZE", "memory for rows of each model (256MiB)"),
    "wire_memory": (str, "SIZE", "memory for tensors of requests and replies (256MiB)"),
    "request_max": (str, "SIZE", "largest request (64MiB)"),
    "slo": (float, "SECONDS", "deadline of requests without a timeout (1)"),
    "drain": (float, "SECONDS", "time for open requests after SIGTERM (30)"),
    "warm_up": (float, "SECONDS", "time for the models to answer their examples (120)"),
    "lookup_threads": (int, "N", "threads that run CPU halves (one per core)"),
    "network_threads": (int, "N", "threads that wait for sockets (2)"),
    "batch_requests": (int, "N", "largest batch of the dense half, in requests (32)"),
    "batch_rows": (int, "N", "largest batch of the dense half, in rows (4096)"),
    "queue_requests": (int, "N", "longest queue of a half (1024)"),
    "log_level": (str, "LEVEL", "error, warn, info, debug, trace or off (info)"),
}


def add_serve(commands: Any) -> None:
    """Add `rowmill serve` to the commands."""
    parser = commands.add_parser(
        "serve", help="answer requests to exported models by the Open Inference Protocol"
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
