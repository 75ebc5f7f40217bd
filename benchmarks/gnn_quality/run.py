"""How well do graph neural networks with stored features classify real graphs?

Each settings file in `examples/gnn` is trained on ten splits (or `--splits`); the summary has the mean and standard
deviation of the test metrics. The graphs are in `$ROWMILL_DATA` or `../shared/data`; settings without their graph are
skipped. The result of a split is a file in `--folder`, from which the same command makes the summary. An interrupted
command continues where it stopped, within a split from its last checkpoint.
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
    """The path of the graph for settings of this name, or None if it is missing."""
    return common.data_file(GRAPHS[name.split("-")[0]])


class Settings:
    """A settings file and the results of its splits."""

    def __init__(self, name: str, graph: Path, folder: Path) -> None:
        self.name = name
        self._config = load_config(EXAMPLES / f"{name}.toml", {("data", "path"): graph})
        self._outcomes = Outcomes(folder / name)

    def measure(self, split: int) -> None:
        """Train and test on a split, unless its result exists already."""
        self._outcomes.measure(f"split-{split}", config_of_split(self._config, split))

    def results(self, splits: int) -> dict[int, dict[str, Any]]:
        """The results that exist, by split."""
        found = {
            split: self._outcomes.result(f"split-{split}", config_of_split(self._config, split))
            for split in range(splits)
        }
        return {split: result for split, result in found.items() if result is not None}


def summarize(benchmark: common.Benchmark, settings: Settings, splits: int) -> None:
    """Replace the metrics of these settings in the benchmark by those of all finished splits."""
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
    parser.add_argument(
        "--splits", type=int, help="number of splits per settings file (default: 10, quick: 1)"
    )
    arguments = parser.parse_args()
    splits: int = arguments.splits or (1 if arguments.quick else 10)
    benchmark = common.Benchmark(common.settings(arguments))
    for name in arguments.settings:
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: skipped, its graph is missing", file=sys.stderr)
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
