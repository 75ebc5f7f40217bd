"""In memory, does an epoch take as long as in the framework that is made for the task?

Knowledge graphs beside PyKEEN, which is installed into a folder of its own where it is not there yet.
"""

import gc
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from tools.frameworks import frameworks_folder

sys.path.insert(0, str(frameworks_folder()))
from benchmarks.peer_frameworks import kge


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--watts", type=float, default=5.0, help="what a busy core draws, for joules per batch"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    # PyKEEN collects garbage after every epoch: what was imported is none.
    gc.freeze()
    shape = kge.Shape()
    rounds = 5
    if not arguments.quick:
        shape, rounds = replace(shape, batches=128), 7
    with tempfile.TemporaryDirectory() as folder:
        data = kge.graph_folder(Path(folder))
        kge.measure(benchmark, shape, data, watts=arguments.watts, rounds=rounds)
    gc.unfreeze()
    benchmark.summary["watts_per_core_assumed"] = arguments.watts
    benchmark.write()


if __name__ == "__main__":
    main()
