"""The commands `rowmill storage ...`: storage nodes, which serve tables and blocks over NVMe/TCP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_storage(commands: Any) -> None:
    """Add `rowmill storage` to the commands."""
    storage = commands.add_parser(
        "storage", help="serve tables or blocks to other machines over NVMe/TCP"
    ).add_subparsers(required=True, metavar="COMMAND")
    serve = storage.add_parser("serve", help="run a storage node until SIGTERM")
    serve.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file with the settings"
    )
    serve.set_defaults(command=_serve, interrupted="")


def _serve(parsed: argparse.Namespace) -> int:
    from rowmill._core import StorageNode

    node = StorageNode(parsed.config)
    print(json.dumps({"ready": node.urls, "metrics": node.metrics}), flush=True)
    node.run()
    return 0
