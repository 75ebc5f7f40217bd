"""The command `rowmill serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.errors import InvalidInput

if TYPE_CHECKING:
    import argparse

    from rowmill.serve.files import BundleFiles

_FLAGS: dict[str, tuple[Any, str]] = {
    "role": (str, 'all (default), or one half: "dense" with --listen, "cpu" with --dense'),
    "listen": (str, "where a dense half listens: tcp://HOST:PORT or shm:///PATH"),
    "dense": (str, "where a CPU half finds its dense half"),
    "host": (str, "address for clients (127.0.0.1)"),
    "http_port": (int, "port of HTTP (8000; 0 takes a free one)"),
    "grpc_port": (int, "port of gRPC (8001; 0 takes a free one)"),
    "metrics_port": (int, "port of /metrics and /healthz (8002; 0 takes a free one)"),
    "device": (str, "where the dense half runs: cpu (default), cuda or cuda:NUMBER"),
    "memory": (str, "memory for rows of each model (256MiB)"),
    "wire_memory": (str, "memory for tensors of requests and replies (256MiB)"),
    "request_max": (str, "largest request (64MiB)"),
    "slo": (float, "seconds in which requests without a timeout are answered (1)"),
    "drain": (float, "seconds that open requests get at the end (30)"),
    "warm_up": (float, "seconds until the models must have answered their examples (120)"),
    "lookup_threads": (int, "threads that run CPU halves (one per core)"),
    "network_threads": (int, "threads that wait for sockets (2)"),
    "batch_requests": (int, "requests that the dense half runs together at most (32)"),
    "batch_rows": (int, "rows that the dense half runs together at most (4096)"),
    "queue_requests": (int, "requests that wait for a half at most (1024)"),
    "log_level": (str, "error, warn, info, debug or off (info)"),
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
        help="folder that `rowmill export` wrote; the model's name is that of the folder",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML; flags win")
    for key, (kind, text) in _FLAGS.items():
        flag = f"--{key.replace('_', '-')}"
        parser.add_argument(flag, type=kind, metavar=key.rsplit("_", 1)[-1].upper(), help=text)
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="allow addresses that other machines reach: nothing is encrypted",
    )
    parser.set_defaults(command=_serve, interrupted="")


def _serve(parsed: argparse.Namespace) -> int:
    from rowmill.serve.settings import read_settings
    from rowmill.serve.worker import serve

    flags = {key: getattr(parsed, key) for key in (*_FLAGS, "insecure")}
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
        raise InvalidInput(f"{text!r} gives the model no name for URLs: write NAME=FOLDER")
    return BundleFiles.open(path, name)
