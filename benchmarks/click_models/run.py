"""Do click models learn the same over a store as over torch's own embeddings?

Every model trains on one log of sequences with some seeds: with its rows in a store, and as its twin over
`nn.EmbeddingBag` with the optimizer of torch of that name. Both see the same batches and begin with the same weights.
The log is made of MovieLens 100k by time, the last item of every user left out, where `$ROWMILL_DATA` or
`../shared/data` has it; else it is generated.
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
    """Name and settings of the log: 1 row without a click for each with one in the quick form, else 4."""
    negatives = 1 if quick else 4
    file = common.data_file("ml-100k/ml-100k.inter")
    if file is not None:
        return "ml-100k", SequencesConfig(interactions=file, negatives=negatives)
    print("no ml-100k in $ROWMILL_DATA or ../shared/data: generating a log", file=sys.stderr)
    return "generated", SequencesConfig(users=1000, items=1500, events=100, negatives=negatives)


def run(
    kind: Kind, side: str, *, seed: int, sequences: SequencesConfig, folder: Path, epochs: int
) -> dict[str, Any]:
    """One run: what it scored on the items that were left out."""
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
    """Means over seeds, how far seeds lie apart, and the largest difference between both sides of one seed."""
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
    """All models with all seeds, a seed's two sides one after the other."""
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
        "--kinds", default=",".join(get_args(Kind)), help="models, with commas (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of each side (default 5)")
    arguments = parser.parse_args()
    kinds: list[Kind] = arguments.kinds.split(",")
    if unknown := set(kinds) - set(get_args(Kind)):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}; known: {', '.join(get_args(Kind))}")
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
