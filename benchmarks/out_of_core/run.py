"""How much slower is training if only a part of the rows fits into memory?

Two shapes. `generated`: a DLRM on the generated log, 26 tables of a million rows, Zipf ids with exponent 1.05, row
memory for a quarter of the rows. The rate is compared with the lower of two limits: the rate with all rows in memory,
and the rate at which the device can read the cold rows of a step. `--peers` runs the same loop over other engines.
`criteo`: the Criteo sample with row memory for a tenth of the live rows and for all; metrics must be bit-identical. The
sample is read from `$ROWMILL_DATA` or `../shared/data`; without it, a log of the same shape is generated.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from rowmill.cli.openmp import spin_briefly

spin_briefly()  # As `rowmill train` does. The next imports load torch.

from benchmarks import common  # noqa: E402
from benchmarks.out_of_core import criteo, generated  # noqa: E402
from benchmarks.peer_loop import add_arguments, patience_of  # noqa: E402


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--shape", choices=["generated", "criteo"], help="run only this shape (default: both)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="generated: threads of the trainer (default: number of cores minus 1)",
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    if arguments.shape != "criteo":
        patience = patience_of(arguments)
        peers = arguments.peers
        generated.run(benchmark, patience=patience, peers=peers, threads=arguments.threads)
    if arguments.shape != "generated":
        criteo.run(benchmark)
    for name, value in benchmark.summary.items():
        if name.startswith("rate_") and not name.endswith("_spread"):
            print(f"{name}: {value:.3f}", file=sys.stderr)
    benchmark.write()


if __name__ == "__main__":
    main()
