"""How well do graph neural networks with stored features classify real graphs?

Each file of settings in `examples/gnn` is trained on ten splits, or on some of them, and told as mean and standard deviation of the
test part. The graphs are in the folder that `$ROWMILL_DATA` names, else in `../shared/data`; those that are not there are
left out.
"""

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from rowmill.config import load_config
from rowmill.train import train_splits

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


def measure(benchmark: common.Benchmark, name: str, graph: Path, splits: int) -> None:
    """All splits of one file of settings."""
    config = load_config(EXAMPLES / f"{name}.toml", {("data", "path"): graph})
    with tempfile.TemporaryDirectory(dir=os.environ.get("ROWMILL_BENCH_DIR")) as folder:
        config = replace(
            config,
            gnn=replace(config.gnn, splits=splits),
            train=replace(config.train, out=Path(folder)),
        )
        result = train_splits(config, Console(quiet=True))
    figure = "auc" if "auc" in result["test"] else "accuracy"
    found, chosen_by = result["test"][figure], result["valid"][f"valid_{figure}"]
    parts = zip(result["splits"], found["values"], chosen_by["values"], strict=True)
    for split, value, valid in parts:
        benchmark.cells.append(
            {"variant": name, "round": split, figure: value, f"valid_{figure}": valid}
        )
    benchmark.summary[f"{name}_{figure}"] = found["mean"]
    if found["deviation"] is not None:
        benchmark.summary[f"{name}_{figure}_deviation"] = found["deviation"]
    benchmark.summary[f"{name}_asked"] = ASKED[name]
    benchmark.summary[f"{name}_seconds_per_split"] = result["seconds"] / splits
    print(f"{name}: {figure} {found['mean']:.4f}, asked {ASKED[name]}", file=sys.stderr)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--settings", default=",".join(ASKED), help="names, with commas (default: all)"
    )
    parser.add_argument("--splits", type=int, help="of each (default: 10, quick: 1)")
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
        else:
            measure(benchmark, name, graph, splits)
    benchmark.write()


if __name__ == "__main__":
    main()
