"""What does it cost to serve a model in two halves, and how does the server do beside others?

Processes of `rowmill serve` answer `rowmill loadtest`. README.md says what each part measures and what must hold.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
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
from benchmarks.serving.settings import FULL, QUICK, Settings
from benchmarks.serving.shapes import SPLIT
from benchmarks.serving.split import split
from benchmarks.serving.stalls import stalls
from benchmarks.serving.summary import AIMS, CLAIMS, summarize
from benchmarks.serving.ways import WAYS

PARTS = ("crossing", "sequential", "saturated", "peers", "large", "overload", "stalls")
"""`saturated` begins with `sequential`."""
RUN = {
    "saturated": partial(split, saturated=True),
    "peers": peers,
    "large": large,
    "overload": overload,
    "stalls": stalls,
}


def _end(_signal: int, _frame: object) -> None:
    sys.exit("ended by SIGTERM")


def main() -> None:
    # Workers and network namespaces are removed on the way out.
    signal.signal(signal.SIGTERM, _end)
    arguments = _arguments()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    settings = _chosen(QUICK if quick else FULL, arguments)
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


def _chosen(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Settings with the models and ways that are asked for."""
    models = tuple(shape for shape in settings.models if shape.name in arguments.models)
    ways = tuple(way for way in settings.ways if way in ("all", *arguments.ways))
    return replace(settings, models=models, ways=ways)


def _arguments() -> argparse.Namespace:
    parser = common.argument_parser(__doc__)

    def some_of(known: Sequence[str], what: str) -> Callable[[str], list[str]]:
        def names(text: str) -> list[str]:
            given = text.split(",")
            if unknown := set(given) - set(known):
                raise argparse.ArgumentTypeError(
                    f"no {what} {', '.join(sorted(unknown))}: there are {', '.join(known)}"
                )
            return [name for name in known if name in given]

        return names

    def add(flag: str, known: Sequence[str], what: str, text: str) -> None:
        parser.add_argument(flag, type=some_of(known, what), default=list(known), help=text)

    add("--only", PARTS, "part", "parts, with commas (default: all)")
    add("--models", [shape.name for shape in SPLIT], "model", "models in two halves (default: all)")
    add("--ways", WAYS, "way", "how they are served, beside `all` (default: all ways)")
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
