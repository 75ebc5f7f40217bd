"""With all rows in memory, does an epoch take as long as in a framework made for the task?

Compares knowledge graphs with PyKEEN and graph neural networks with PyTorch Geometric. Both are installed into a separate
folder if they are missing.
"""

import gc
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from tools.frameworks import frameworks_folder

sys.path.insert(0, str(frameworks_folder()))
from benchmarks.peer_frameworks import kge, nodes


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--watts",
        type=float,
        default=5.0,
        help="watts of a busy core, for joules per batch (default 5)",
    )
    parser.add_argument(
        "--cells", default="kge,gnn", help="cells, separated by commas (default kge,gnn)"
    )
    arguments = parser.parse_args()
    cells = set(arguments.cells.split(","))
    if not cells <= {"kge", "gnn"}:
        parser.error(f"--cells must be kge, gnn or both, got {sorted(cells)}")
    benchmark = common.Benchmark(common.settings(arguments))
    rounds, more = (5, 1) if arguments.quick else (7, 8)
    # PyKEEN collects garbage after every epoch; this excludes all imported objects from the scan.
    gc.freeze()
    if "kge" in cells:
        shape = kge.Shape(batches=16 * more)
        with tempfile.TemporaryDirectory() as folder:
            data = kge.graph_folder(Path(folder))
            kge.measure(benchmark, shape, data, watts=arguments.watts, rounds=rounds)
    if "gnn" in cells:
        shape = nodes.Shape(batches=16 * more)
        nodes.measure(benchmark, shape, watts=arguments.watts, rounds=rounds)
    gc.unfreeze()
    benchmark.summary["watts_per_core_assumed"] = arguments.watts
    benchmark.write()


if __name__ == "__main__":
    main()
