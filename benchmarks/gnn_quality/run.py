"""How well do graph neural networks with stored features classify real graphs?

Each file of settings in `examples/gnn` is trained on ten splits, or on some of them, and told as mean and standard deviation of the
test part. The graphs are in the folder that `$ROWMILL_DATA` names, else in `../shared/data`; those that are not there are
left out. What came of a split is a file below `--folder`, of which the same command makes the summary: one that was
interrupted goes on where it was, within a split from its last checkpoint.
"""

import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.outcomes import Outcomes, parser_of_settings
from rowmill.config import load_config
from rowmill.gnn.splits import best_of_valid, config_of_split

EXAMPLES = common.REPOSITORY / "examples/gnn"
GRAPHS = {
    "amazon_cs": "gnn/amazon_cs.plain.npz",
    "coauthor_cs": "gnn/coauthor_cs.plain.npz",
    "tolokers": "gnn/tolokers.npz",
}
ASKED = {
    "amazon_cs-graphsage": 0.80,
    "coauthor_cs-graphsage": 0.905,
    "tolokers-graphsage": 0.80,
    "amazon_cs-gat": 0.77,
    "coauthor_cs-gat": 0.895,
}


def graph_of(name: str) -> Path | None:
    """The graph that settings of this name are for, if it is there."""
    return common.data_file(GRAPHS[name.split("-")[0]])


class Settings:
    """A file of settings, and what came of its splits."""

    def __init__(self, name: str, graph: Path, folder: Path) -> None:
        self.name = name
        self._config = load_config(EXAMPLES / f"{name}.toml", {("data", "path"): graph})
        self._outcomes = Outcomes(folder / name)

    def measure(self, split: int) -> None:
        """Train on a split and test, unless that was done already with the same settings."""
        self._outcomes.measure(f"split-{split}", config_of_split(self._config, split))

    def results(self, splits: int) -> dict[int, dict[str, Any]]:
        """What came of those that were trained on."""
        found = {
            split: self._outcomes.result(f"split-{split}", config_of_split(self._config, split))
            for split in range(splits)
        }
        return {split: result for split, result in found.items() if result is not None}


def summarize(benchmark: common.Benchmark, settings: Settings, splits: int) -> None:
    """Figures of the splits that are there, in place of those that the benchmark has of these settings."""
    name, results = settings.name, settings.results(splits)
    benchmark.cells = [cell for cell in benchmark.cells if cell["variant"] != name]
    if not results:
        return
    figure = "auc" if "auc" in results[min(results)]["test"] else "accuracy"
    found = [result["test"][figure] for result in results.values()]
    for split, result in results.items():
        benchmark.cells.append(
            {
                "variant": name,
                "round": split,
                figure: result["test"][figure],
                f"valid_{figure}": best_of_valid(result["curve"])[f"valid_{figure}"],
                "seconds": result["seconds"],
                "source": result["source"],
            }
        )
    benchmark.summarize(f"{name}_{figure}", common.Mean.of(found))
    if len(found) > 1:
        benchmark.summary[f"{name}_{figure}_deviation"] = stdev(found)
    benchmark.summary |= {
        f"{name}_asked": ASKED[name],
        f"{name}_splits": len(found),
        f"{name}_seconds_per_split": mean(result["seconds"] for result in results.values()),
    }


def main() -> None:
    parser = parser_of_settings(__doc__, ASKED, "out/gnn_quality")
    parser.add_argument("--splits", type=int, help="of each (default: 10, quick: 1)")
    arguments = parser.parse_args()
    splits: int = arguments.splits or (1 if arguments.quick else 10)
    benchmark = common.Benchmark(common.settings(arguments))
    for name in arguments.settings:
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: its graph is not there, left out", file=sys.stderr)
            continue
        settings = Settings(name, graph, arguments.folder)
        for split in range(splits):
            settings.measure(split)
            summarize(benchmark, settings, split + 1)
            print(f"{name}, split {split}: {benchmark.cells[-1]}", file=sys.stderr)
            if arguments.out is not None:
                benchmark.write()
    if arguments.out is None:
        benchmark.write()


if __name__ == "__main__":
    main()
