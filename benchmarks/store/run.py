"""How near does the store come to the limits of memory and of the disk, and how far from its peers?

Each cell is one kind of work, run by a process of its own in interleaved rounds: the probe that shows the
limit (random bucket, then random row; or random blocks of the same file system), then the store, then the
peers, if they are asked for. The engines are written in Rust (crates/rowmill-bench), so that no interpreter
stands between them and a row.
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
    """Runs a cell; one dictionary per line it prints."""
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
    """The peers that are named, separated by commas."""
    peers = text.split(",")
    for peer in peers:
        if peer not in PEERS:
            raise argparse.ArgumentTypeError(f"{peer!r}: use {', '.join(PEERS)}, or several")
    return peers


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--peers",
        type=peers_of,
        default=[],
        metavar=",".join(PEERS),
        help="run these engines beside the store (tools/peers.sh says what they need)",
    )
    parser.add_argument(
        "--cells", metavar="NAME,...", help="run the cells whose names begin so, not all"
    )
    parser.add_argument(
        "--peer-threads", default=PEER_THREADS, metavar="N,...", help="threads that call a peer"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every engine (5)")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    quick, seed = benchmark.settings.quick, benchmark.settings.seed
    names = tuple(arguments.cells.split(",")) if arguments.cells else ("",)
    chosen = [cell for cell in cells(quick) if cell.name.startswith(names)]
    if not chosen:
        parser.error(f"--cells {arguments.cells}: there are {[c.name for c in cells(quick)]}")
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
