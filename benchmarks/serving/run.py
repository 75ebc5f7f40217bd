"""What does it cost to serve a model in two halves, and how does the server do beside others?

Processes of `rowmill serve` answer `rowmill loadtest`. README.md says what each part measures and what must hold.
"""

import argparse
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.claims import verdicts
from benchmarks.serving.bundles import Bundles
from benchmarks.serving.cells import Cells
from benchmarks.serving.crossing import crossing
from benchmarks.serving.large import large
from benchmarks.serving.overload import overload
from benchmarks.serving.part import Part
from benchmarks.serving.peers import peers
from benchmarks.serving.settings import FULL, QUICK
from benchmarks.serving.split import split
from benchmarks.serving.summary import AIMS, CLAIMS, summarize

PARTS = ("crossing", "sequential", "saturated", "peers", "large", "overload")
"""`saturated` begins with `sequential`."""
RUN = {
    "saturated": partial(split, saturated=True),
    "peers": peers,
    "large": large,
    "overload": overload,
}


def _end(_signal: int, _frame: object) -> None:
    sys.exit("ended by SIGTERM")


def main() -> None:
    # Workers and network namespaces are removed on the way out.
    signal.signal(signal.SIGTERM, _end)
    arguments = _arguments()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    settings = QUICK if quick else FULL
    cells = Cells(
        arguments.folder / f"cells-{'quick' if quick else 'full'}",
        {"rows": settings.rows, "count": settings.count, "seed": seed, "settings": repr(settings)},
    )
    bundles = Bundles(arguments.folder, settings.rows, settings.count, seed)
    # Paths of Unix sockets are short.
    with tempfile.TemporaryDirectory(prefix="rowmill-serving-") as logs:
        part = Part(settings, bundles, cells, Path(logs))
        for name in arguments.only:
            if name == "crossing":
                crossing(benchmark, part)
            elif name == "sequential" and "saturated" not in arguments.only:
                split(part, saturated=False)
            elif name in RUN:
                RUN[name](part)
            summarize(benchmark, cells.found)
            benchmark.cells = list(cells.found)
            benchmark.keep()
    _print(benchmark.summary)
    benchmark.write()


def _arguments() -> argparse.Namespace:
    parser = common.argument_parser(__doc__)

    def names(text: str) -> list[str]:
        given = text.split(",")
        if unknown := set(given) - set(PARTS):
            raise argparse.ArgumentTypeError(
                f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}"
            )
        return [name for name in PARTS if name in given]

    parser.add_argument(
        "--only", type=names, default=list(PARTS), help="parts, with commas (default: all)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / "out/serving",
        help="where models and measured cells are kept (out/serving)",
    )
    return parser.parse_args()


def _print(summary: dict[str, float]) -> None:
    for title, claims in (("must hold", CLAIMS), ("aimed at", AIMS)):
        for name, value, holds in verdicts(summary, claims):
            print(
                f"{title}: {name} = {value:.3g} {'holds' if holds else 'MISSED'}", file=sys.stderr
            )


if __name__ == "__main__":
    main()
