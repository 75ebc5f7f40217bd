"""What does less memory cost a training run?

Two shapes. `generated`: a DLRM on the generated log, 26 tables of a million rows, ids by Zipf 1.05, with memory for
a quarter of the rows, beside the lower of its two limits: the rate with memory for all, and what the device gives
over the cold rows of a step, and beside the same loop over other engines (`--peers`). `criteo`: the Criteo sample, row for row, with memory for a tenth of the live row bytes
and for everything, whose metrics must be equal to the bit. It is taken from `$ROWMILL_DATA` or `../shared/data`, else
a log of the same shape is generated.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.out_of_core import criteo, generated
from benchmarks.peer_loop import add_arguments, patience_of


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--shape", choices=["generated", "criteo"], help="one of the shapes, not both"
    )
    parser.add_argument(
        "--threads", type=int, help="generated: threads of the trainer (its default: a core less)"
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
