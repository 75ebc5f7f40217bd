"""Do click models learn the same over a store as over torch embeddings?

Every model trains with several seeds on one log of sequences: with its rows in a store, and as a twin over
`nn.EmbeddingBag` with the torch optimizer of the same name. Both have the same batches and initial weights. The log is
MovieLens 100k in order of time, without the last item of every user, if `$ROWMILL_DATA` or `../shared/data` has it;
else a generated log.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from rowmill.config import Config, DataConfig, ModelConfig, RowsConfig, StoreConfig, TrainConfig
from rowmill.ctr.settings import SequencesConfig
from rowmill.train import train

Kind = Literal["wide_deep", "ncf", "two_tower", "din", "dien", "bst"]
SIDES = ("stored", "plain")
FIGURES = ("auc", "hr_at_10")


def log(*, quick: bool) -> tuple[str, SequencesConfig]:
    """Name and settings of the log. Per row with a click there are 4 rows without one (quick: 1)."""
    negatives = 1 if quick else 4
    file = common.data_file("ml-100k/ml-100k.inter")
    if file is not None:
        return "ml-100k", SequencesConfig(interactions=file, negatives=negatives)
    print("no ml-100k in $ROWMILL_DATA or ../shared/data: generating a log", file=sys.stderr)
    return "generated", SequencesConfig(users=1000, items=1500, events=100, negatives=negatives)


def run(
    kind: Kind, side: str, *, seed: int, sequences: SequencesConfig, folder: Path, epochs: int
) -> dict[str, Any]:
    """Train once; returns the metrics on the items that were left out."""
    report = train(
        Config(
            data=DataConfig(path=folder / "log"),
            sequences=sequences,
            model=ModelConfig(kind=kind, deep=(64, 32), attention=(32, 16)),
            rows=RowsConfig(lr=0.1),
            store=StoreConfig(memory="256MiB"),
            train=TrainConfig(
                batch=1024,
                epochs=epochs,
                seed=seed,
                threads=1,
                checkpoint_every=0,
                plain=side == "plain",
                out=folder / f"{kind}-{side}-{seed}",
            ),
        ),
        Console(quiet=True),
    )
    cell = {"variant": f"{kind}_{side}", "round": seed, "steps": report["run"]["steps"]}
    cell |= {figure: report["test"][figure] for figure in FIGURES}
    print(f"{kind}, {side}, seed {seed}: {cell['auc']:.4f} {cell['hr_at_10']:.4f}", file=sys.stderr)
    return cell


def summarize(benchmark: common.Benchmark, kind: str) -> None:
    """Means and spread over seeds, and the largest difference between store and twin for the same seed."""
    for figure in FIGURES:
        scores = {
            side: [cell[figure] for cell in benchmark.cells if cell["variant"] == f"{kind}_{side}"]
            for side in SIDES
        }
        for side, values in scores.items():
            numbers = [float(str(value)) for value in values]
            name = f"{kind}_{side}_{figure}"
            benchmark.summarize(name, common.Mean.of(numbers))
        pairs = zip(scores["stored"], scores["plain"], strict=True)
        benchmark.summary[f"{kind}_{figure}_largest_difference"] = max(
            abs(float(str(stored)) - float(str(plain))) for stored, plain in pairs
        )


def measure(
    benchmark: common.Benchmark,
    kinds: list[Kind],
    folder: Path,
    sequences: SequencesConfig,
    *,
    seeds: int,
    epochs: int,
) -> None:
    """Run all models with all seeds; store and twin of a seed run one after the other."""
    first = benchmark.settings.seed
    for kind in kinds:
        for seed in range(first, first + seeds):
            for side in SIDES:
                cell = run(kind, side, seed=seed, sequences=sequences, folder=folder, epochs=epochs)
                benchmark.cells.append(cell)
        summarize(benchmark, kind)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--kinds",
        default=",".join(get_args(Kind)),
        help="names of models, separated by commas (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default 5)")
    arguments = parser.parse_args()
    kinds: list[Kind] = arguments.kinds.split(",")
    if unknown := set(kinds) - set(get_args(Kind)):
        parser.error(
            f"--kinds: unknown {', '.join(sorted(unknown))}; use {', '.join(get_args(Kind))}"
        )
    benchmark = common.Benchmark(common.settings(arguments))
    name, sequences = log(quick=arguments.quick)
    print(f"log: {name}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        epochs = 1 if arguments.quick else 3
        place = Path(folder)
        measure(benchmark, kinds, place, sequences, seeds=arguments.seeds, epochs=epochs)
    benchmark.write()


if __name__ == "__main__":
    main()
