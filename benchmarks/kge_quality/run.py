"""How well do knowledge-graph models over stored rows rank the missing links of known graphs?

Each file of settings in `examples/kge` is one run of `rowmill train`, told as figures of the test part. The graphs are in the folder
that `$ROWMILL_DATA` names, else in `../shared/data`; those that are not there are left out. What came of a run is a file below
`--folder`, of which the same command makes the summary: one that was interrupted goes on from its last checkpoint.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.outcomes import Outcomes, parser_of_settings
from rowmill.config import Config, load_config

EXAMPLES = common.REPOSITORY / "examples/kge"
GRAPHS = {"codex": "kge/codex-s", "wn18rr": "kge/wn18rr", "fb15k237": "kge/fb15k237"}
ASKED = {
    "codex-s-complex": 0.455,
    "wn18rr-complex": 0.465,
    "wn18rr-distmult": 0.44,
    "fb15k237-complex": 0.338,
    "fb15k237-distmult": 0.333,
}
"""Filtered MRR of the test part."""
FIGURES = ("mrr", "hits@1", "hits@3", "hits@10")


def graph_of(name: str) -> Path | None:
    """The graph that settings of this name are for, if it is there."""
    return common.data_file(GRAPHS[name.split("-")[0]])


def config_of(name: str, graph: Path, *, quick: bool) -> Config:
    """The settings of this name; in the quick form of one epoch."""
    config = load_config(EXAMPLES / f"{name}.toml", {("data", "path"): graph})
    return replace(config, train=replace(config.train, epochs=1)) if quick else config


def summarize(benchmark: common.Benchmark, name: str, result: dict[str, Any]) -> None:
    """Figures of a run, in place of those that the benchmark has of these settings."""
    test, valid = result["test"], result["curve"][-1]
    benchmark.cells = [cell for cell in benchmark.cells if cell["variant"] != name]
    benchmark.cells.append(
        {
            "variant": name,
            "round": 0,
            **{figure: test[figure] for figure in FIGURES},
            "valid_mrr": valid["valid_mrr"],
            "epochs": result["settings"]["train"]["epochs"],
            "seconds": result["seconds"],
            "commit": result["machine"]["commit"],
        }
    )
    benchmark.summary |= {
        f"{name}_mrr": test["mrr"],
        f"{name}_asked": ASKED[name],
        f"{name}_seconds": result["seconds"],
    }


def main() -> None:
    parser = parser_of_settings(__doc__, ASKED, "out/kge_quality")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    # Apart: one epoch must not go on with, or end, a whole run that was interrupted.
    outcomes = Outcomes(arguments.folder / "quick" if arguments.quick else arguments.folder)
    for name in ASKED:
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: its graph is not there, left out", file=sys.stderr)
            continue
        config = config_of(name, graph, quick=arguments.quick)
        if name in arguments.settings:
            outcomes.measure(name, config)
        # Those that were trained earlier belong to the summary too.
        result = outcomes.result(name, config)
        if result is not None:
            summarize(benchmark, name, result)
            print(f"{name}: {benchmark.cells[-1]}", file=sys.stderr)
            benchmark.keep()
    if arguments.out is None:
        benchmark.write()


if __name__ == "__main__":
    main()
