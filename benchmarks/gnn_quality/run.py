"""How well do graph neural networks with stored features classify real graphs?

Each file of settings in `examples/gnn` is trained on ten splits, or on some of them, and told as mean and standard deviation of the
test part. The graphs are in the folder that `$ROWMILL_DATA` names, else in `../shared/data`; those that are not there are
left out. What came of a split is a file below `--folder`, of which the same command makes the summary: one that was
interrupted goes on where it was, within a split from its last checkpoint.
"""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from rowmill.config import Config, load_config
from rowmill.train import train
from rowmill.train.splits import best_of_valid, config_of_split

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
    places = [os.environ.get("ROWMILL_DATA", ""), str(common.REPOSITORY / "../shared/data")]
    found = (Path(place) / GRAPHS[name.split("-")[0]] for place in filter(None, places))
    return next((path for path in found if path.is_file()), None)


class Settings:
    """A file of settings, and what came of its splits: a file each."""

    def __init__(self, name: str, graph: Path, folder: Path) -> None:
        self.name = name
        self._folder = folder / name
        self._config = load_config(EXAMPLES / f"{name}.toml", {("data", "path"): graph})

    def measure(self, split: int) -> None:
        """Train on a split and test, unless that was done already with the same settings."""
        if self.result(split) is not None:
            return
        run = self._folder / f"split-{split}"
        report = train(self._config_of(split, run), Console(quiet=True))
        result = {
            "test": report["test"],
            "valid": best_of_valid(report["curve"]),
            "seconds": report["run"]["seconds"],
            "settings": self._identity(split),
            "machine": common.machine(),
        }
        # It is there as a whole or not at all.
        draft = self._file(split).with_suffix(".new")
        draft.write_text(json.dumps(result, indent=1) + "\n")
        draft.rename(self._file(split))
        shutil.rmtree(run)

    def result(self, split: int) -> dict[str, Any] | None:
        """What came of a split with these settings, if it was trained on."""
        file = self._file(split)
        result = json.loads(file.read_text()) if file.is_file() else None
        return result if result and result["settings"] == self._identity(split) else None

    def results(self, splits: int) -> dict[int, dict[str, Any]]:
        """What came of those that were trained on."""
        found = {split: self.result(split) for split in range(splits)}
        return {split: result for split, result in found.items() if result is not None}

    def _file(self, split: int) -> Path:
        return self._folder / f"split-{split}.json"

    def _config_of(self, split: int, run: Path) -> Config:
        config = config_of_split(self._config, split)
        # A run that was interrupted goes on: without a checkpoint `resume` begins at the first node.
        return replace(config, train=replace(config.train, out=run, resume=True))

    def _identity(self, split: int) -> dict[str, Any]:
        """What a result belongs to: settings without places."""
        settings = config_of_split(self._config, split).as_dict()
        del settings["data"]["path"], settings["train"]["out"]
        return json.loads(json.dumps(settings))


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
                f"valid_{figure}": result["valid"][f"valid_{figure}"],
                "seconds": result["seconds"],
                "commit": result["machine"]["commit"],
            }
        )
    benchmark.summary[f"{name}_{figure}"] = mean(found)
    if len(found) > 1:
        benchmark.summary[f"{name}_{figure}_deviation"] = stdev(found)
    benchmark.summary |= {
        f"{name}_asked": ASKED[name],
        f"{name}_splits": len(found),
        f"{name}_seconds_per_split": mean(result["seconds"] for result in results.values()),
    }


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--settings", default=",".join(ASKED), help="names, with commas (default: all)"
    )
    parser.add_argument("--splits", type=int, help="of each (default: 10, quick: 1)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=common.REPOSITORY / "out/gnn_quality",
        help="where the files of splits are kept (out/gnn_quality)",
    )
    arguments = parser.parse_args()
    names: list[str] = arguments.settings.split(",")
    if unknown := set(names) - set(ASKED):
        parser.error(f"--settings: {', '.join(sorted(unknown))}; known: {', '.join(ASKED)}")
    splits: int = arguments.splits or (1 if arguments.quick else 10)
    benchmark = common.Benchmark(common.settings(arguments))
    for name in names:
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
