"""How close is the store to the limits of memory and disk, and how does it compare with other engines?

Each cell is one kind of work, run by a separate process in interleaved rounds: a probe of the limit (a
random bucket, then a random row; or random blocks of the same file system), the store, and the peers if
requested. The program is written in Rust (crates/rowmill-bench), so no interpreter time is included.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.store.cells import PEER_THREADS, PEERS, Cell, cells
from benchmarks.store.summary import summarize


def run(
    program: Path,
    cell: Cell,
    *,
    peers: list[str],
    peer_threads: str,
    quick: bool,
    rounds: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Run a cell; returns a dictionary for each line that the program prints."""
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as folder:
        numbers = {
            "rows": cell.rows,
            "row-bytes": cell.row_bytes,
            "memory": cell.memory,
            "seconds": cell.seconds or (1 if quick else 4),
            "rounds": rounds,
            "folder": folder,
            "seed": seed,
        }
        if cell.peers and peers:
            numbers |= {"peers": ",".join(peers), "peer-threads": peer_threads}
        options = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        done = subprocess.run(
            [str(program), cell.work, *options, *cell.arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
    return [{"cell": cell.name, **json.loads(line)} for line in done.stdout.splitlines()]


def peers_of(text: str) -> list[str]:
    """Parse names of peers, separated by commas."""
    peers = text.split(",")
    for peer in peers:
        if peer not in PEERS:
            raise argparse.ArgumentTypeError(
                f"unknown peer {peer!r}: give one or more of {', '.join(PEERS)}"
            )
    return peers


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--peers",
        type=peers_of,
        default=[],
        metavar=",".join(PEERS),
        help="also run these engines (tools/peers.sh lists what they need)",
    )
    parser.add_argument(
        "--cells", metavar="NAME,...", help="run only the cells whose names begin with these"
    )
    parser.add_argument(
        "--peer-threads",
        default=PEER_THREADS,
        metavar="N,...",
        help="numbers of threads that call a peer",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds per engine (default 5)")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    names = tuple(arguments.cells.split(",")) if arguments.cells else ("",)
    chosen = [cell for cell in cells(quick) if cell.name.startswith(names)]
    if not chosen:
        parser.error(f"--cells {arguments.cells}: use {[c.name for c in cells(quick)]}")
    program = common.bench_program(arguments.peers)
    for cell in chosen:
        before = set(benchmark.summary)
        lines = run(
            program,
            cell,
            peers=arguments.peers,
            peer_threads=arguments.peer_threads,
            quick=quick,
            rounds=arguments.rounds,
            seed=seed,
        )
        summarize(benchmark, cell, lines)
        for name in benchmark.summary.keys() - before:
            if not name.endswith("_spread"):
                print(f"{name}: {benchmark.summary[name]:,.4g}", file=sys.stderr)
    benchmark.write()


if __name__ == "__main__":
    main()
