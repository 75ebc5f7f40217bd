"""What does a placement of tables that fits the model gain, and does `auto` find the best one?

Trains shapes of DLRM on processes of this machine, over loopback and over limited links in network namespaces (root). In
each cell, all variants take turns in one process group. Cells that --out has are not measured again.
"""

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.claims import verdicts
from benchmarks.exchange.launch import ranks_say
from benchmarks.hybrid.cells import CELLS, QUICK, UNLIMITED, Cell
from benchmarks.hybrid.summary import AIMS, CLAIMS, FIGURES, figures, sent_bytes, summarize
from benchmarks.provenance import Source, processor, utc_now
from benchmarks.slow_links.links import missing, network

RANK = Path(__file__).with_name("rank.py")

Record = dict[str, Any]
"""What a cell has shown.

Fields: `cell`, its name; `settings` that its figures depend on; `speeds`, from which `auto` planned; `variants`, each with the
number of tables by placement, bytes of a step as sent and by the formula, and figures by round; `seconds` that the cell took;
`date`, `processor` and `source`."""


def measure(cell: Cell, *, seed: int, rounds: int) -> Record:
    """Run all variants of a cell in rounds."""
    began, source = time.monotonic(), Source.now()
    job = {"cell": cell.as_json(), "seed": seed, "rounds": rounds}
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    sent: dict[str, dict[str, float]] = {}
    first: dict[str, Any] = {}
    limited = nullcontext() if cell.link == UNLIMITED else network(cell.ranks, cell.link)
    with limited as made:
        for said in ranks_say(RANK, job, cell.ranks, made):
            if said["kind"] == "variants":
                first = said
                continue
            variant, seen = said["variant"], figures(said["seen"])
            found[variant].append(seen)
            sent[variant] = sent_bytes(said["seen"])
            shown = ", ".join(f"{name} {seen[name]:.1f}" for name in FIGURES)
            print(f"{cell.name}, {variant}, round {said['round']}: {shown}", file=sys.stderr)
    return {
        "cell": cell.name,
        "settings": settings_of(cell, seed=seed, rounds=rounds),
        "speeds": first["speeds"],
        "variants": [
            {"variant": name, **of, "bytes": sent[name], "rounds": found[name]}
            for name, of in first["described"].items()
        ],
        "seconds": time.monotonic() - began,
        "date": utc_now(),
        "processor": processor(),
        "source": asdict(source.until_now()),
    }


def settings_of(cell: Cell, *, seed: int, rounds: int) -> dict[str, Any]:
    """The settings that the figures of a cell depend on."""
    return {**cell.as_json(), "seed": seed, "rounds": rounds}


def measure_all(benchmark: common.Benchmark, cells: Sequence[Cell], *, rounds: int) -> None:
    """Measure the cells that `--out` lacks, and keep the result after each."""
    seed, out = benchmark.settings.seed, benchmark.settings.out
    records: list[Record] = []
    if out is not None and out.is_file():
        records = json.loads(out.read_text())["cells"]
    for cell in cells:
        settings = settings_of(cell, seed=seed, rounds=rounds)
        if any(record["settings"] == settings for record in records):
            print(f"{cell.name}: measured before", file=sys.stderr)
            continue
        records = [record for record in records if record["cell"] != cell.name]
        records.append(measure(cell, seed=seed, rounds=rounds))
        benchmark.cells = [*records]
        summarize(benchmark, records)
        benchmark.keep()
    benchmark.cells = [*records]
    summarize(benchmark, records)


def _end(_signal: int, _frame: object) -> None:
    sys.exit("ended by SIGTERM")


def main() -> None:
    # Ranks and namespaces are ended on the way out.
    signal.signal(signal.SIGTERM, _end)
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "cells", nargs="*", help="names of cells (default: all; with --quick: three)"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds per cell (default 5, quick 2)")
    arguments = parser.parse_args()
    if unknown := set(arguments.cells) - set(CELLS):
        parser.error(f"unknown cells {sorted(unknown)}; use {', '.join(CELLS)}")
    benchmark = common.Benchmark(common.settings(arguments))
    quick = benchmark.settings.quick
    cells = [CELLS[name] for name in arguments.cells or (QUICK if quick else CELLS)]
    if why := missing():
        print(f"measuring over loopback only: {why}", file=sys.stderr)
        cells = [cell for cell in cells if cell.link == UNLIMITED]
    measure_all(benchmark, cells, rounds=arguments.rounds or (2 if quick else 5))
    for title, claims in (("must hold", CLAIMS), ("aimed at", AIMS)):
        for name, value, holds in verdicts(benchmark.summary, claims):
            print(
                f"{title}: {name} = {value:.3g} {'holds' if holds else 'MISSED'}", file=sys.stderr
            )
    benchmark.write()


if __name__ == "__main__":
    main()
