"""What does a storage node save on the wire, and what does it cost in speed, freshness and memory?

Processes of `rowmill storage serve` answer hosts on the same machine. README.md says what each part measures and what
must hold.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.claims import verdicts
from benchmarks.serving.cells import Cells
from benchmarks.storage_node.cold import cold
from benchmarks.storage_node.fresh import fresh
from benchmarks.storage_node.memory import memory
from benchmarks.storage_node.part import Part
from benchmarks.storage_node.pooling import pooling
from benchmarks.storage_node.sample import sample
from benchmarks.storage_node.sent_bytes import sent_bytes
from benchmarks.storage_node.settings import FULL, QUICK, TINY
from benchmarks.storage_node.stores import Stores
from benchmarks.storage_node.summary import AIMS, CLAIMS, summarize

PARTS = {
    "bytes": sent_bytes,
    "pooling": pooling,
    "cold": cold,
    "sample": sample,
    "fresh": fresh,
    "memory": memory,
}


def _end(_signal: int, _frame: object) -> None:
    sys.exit("ended by SIGTERM")


def main() -> None:
    # Nodes are ended on the way out.
    signal.signal(signal.SIGTERM, _end)
    arguments = parsed_arguments()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    form = "tiny" if arguments.tiny else "quick" if quick else "full"
    settings = {"tiny": TINY, "quick": QUICK, "full": FULL}[form]
    cells = Cells(arguments.folder / f"cells-{form}", {"seed": seed, "settings": repr(settings)})
    stores = Stores(arguments.folder.resolve(), seed)
    # Beside the stores, because /tmp may be in memory.
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=arguments.folder.resolve()) as nodes:
        part = Part(settings, stores, cells, Path(nodes), seed)
        for name in arguments.only:
            PARTS[name](part)
            summarize(benchmark, cells.found)
            benchmark.cells = list(cells.found)
            benchmark.keep()
    for title, claims in (("must hold", CLAIMS), ("aimed at", AIMS)):
        for name, value, holds in verdicts(benchmark.summary, claims):
            result = "holds" if holds else "MISSED"
            print(f"{title}: {name} = {value:.3g} {result}", file=sys.stderr)
    benchmark.write()


def parsed_arguments() -> argparse.Namespace:
    """The arguments of this program; exits where they are wrong."""
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
        "--tiny", action="store_true", help="seconds per part: shows that the parts work"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / "out/storage_node",
        help="where stores and measured cells are kept (out/storage_node)",
    )
    parsed = parser.parse_args()
    if parsed.tiny and parsed.out is not None:
        parser.error("--tiny measures nothing that is worth --out: leave one of them out")
    return parsed


if __name__ == "__main__":
    main()
