"""In memory, does an epoch take as long as in the framework that is made for the task?

Knowledge graphs beside PyKEEN, graph neural networks beside PyTorch Geometric; both are installed into a folder of their own
where they are not there yet.
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
        "--watts", type=float, default=5.0, help="what a busy core draws, for joules per batch"
    )
    parser.add_argument("--cells", default="kge,gnn", help="which of them, by commas")
    arguments = parser.parse_args()
    cells = set(arguments.cells.split(","))
    if not cells <= {"kge", "gnn"}:
        parser.error(f"--cells has {sorted(cells)}: name kge, gnn or both")
    benchmark = common.Benchmark(common.settings(arguments))
    rounds, more = (5, 1) if arguments.quick else (7, 8)
    # PyKEEN collects garbage after every epoch: what was imported is none.
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
