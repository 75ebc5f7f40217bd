"""The command `rowmill loadtest`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rowmill.cli.subcommand import add_command

if TYPE_CHECKING:
    import argparse

_TOLERANCE = 1e-3


def add_loadtest(commands: Any) -> None:
    """Add `rowmill loadtest` to the commands."""
    parser = add_command(
        commands, "loadtest", "send requests to a server, and measure its latency and throughput"
    )
    parser.add_argument("url", metavar="URL", help="server: http://HOST:PORT or grpc://HOST:PORT")
    parser.add_argument("model", metavar="MODEL", help="name of the model")
    parser.add_argument(
        "--requests",
        type=Path,
        required=True,
        metavar="BUNDLE|FILE",
        help="requests to send in turn: the examples of a bundle, or a file in the form of its examples.safetensors",
    )
    pace = parser.add_mutually_exclusive_group(required=True)
    pace.add_argument(
        "--senders",
        type=int,
        metavar="N",
        help="closed loop: N senders, each of which sends its next request when its last one has ended",
    )
    pace.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="open loop: R requests per second on average, at random times (Poisson)",
    )
    pace.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="open loop: arrival times from FILE, in seconds, one per line",
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        metavar="X",
        help="with --trace: replay it X times as fast (default 1)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="measured time (default 10, or to the end of the trace)",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=1.0,
        metavar="S",
        help="time before the measured time; its requests are not counted (default 1)",
    )
    parser.add_argument(
        "--slo",
        type=float,
        default=1.0,
        metavar="S",
        help="latency objective in seconds, which is also the timeout of each request (default 1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="with --rate: seed of the arrivals (default 0)",
    )
    parser.add_argument(
        "--connections",
        type=int,
        default=256,
        metavar="N",
        help="most connections of an open loop; requests beyond them are not sent (default 256)",
    )
    parser.add_argument(
        "--check",
        type=float,
        nargs="?",
        const=_TOLERANCE,
        metavar="TOLERANCE",
        help=f"count answers that differ from the recorded ones by more than TOLERANCE (default {_TOLERANCE:g})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE")
    parser.set_defaults(command=_loadtest, interrupted="; nothing was reported")


def _loadtest(parsed: argparse.Namespace) -> int:
    from rowmill.errors import InvalidInput
    from rowmill.serve.load import loadtest, report_lines

    if parsed.json is not None and not parsed.json.parent.is_dir():
        raise InvalidInput(
            f"--json {parsed.json}: {parsed.json.parent} is not a folder; make it, or give another path"
        )
    if parsed.trace is None and parsed.speed != 1.0:
        raise InvalidInput(
            f"--speed {parsed.speed:g} is for --trace, which is not given: remove it"
        )
    names = ("senders", "rate", "trace", "speed", "seconds", "warm_up", "slo", "seed", "check")
    options = {name: getattr(parsed, name) for name in (*names, "connections", "requests")}
    report = loadtest(parsed.url, parsed.model, **options)
    print("\n".join(report_lines(report)))
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(report, indent=2) + "\n")
    answered = report["counts"]["in_time"] + report["counts"]["late"]
    if answered == 0:
        print("rowmill: no request was answered", file=sys.stderr)
    elif report["counts"]["wrong"]:
        print(f"rowmill: {report['counts']['wrong']} answers are wrong", file=sys.stderr)
    else:
        return 0
    return 1
