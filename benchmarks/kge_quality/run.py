"""How well do knowledge-graph models over stored rows rank the missing links of well-known graphs?

Each settings file in `examples/kge` is trained with several seeds; the summary has the mean of the test metrics over
seeds. The graphs are in `$ROWMILL_DATA` or `../shared/data`; settings without their graph are skipped. The result of
each run is a file in `--folder`, from which the same command makes the summary. An interrupted run continues from its
last checkpoint.
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
"""Filtered MRR on the test triples that a run should reach."""
FIGURES = ("mrr", "hits@1", "hits@3", "hits@10")


def graph_of(name: str) -> Path | None:
    """The path of the graph for settings of this name, or None if it is missing."""
    return common.data_file(GRAPHS[name.split("-")[0]])


def config_of(name: str, graph: Path, *, seed: int, quick: bool) -> Config:
    """The settings of this name; one epoch in the quick form."""
    flags = {("data", "path"): graph, ("train", "seed"): seed}
    config = load_config(EXAMPLES / f"{name}.toml", flags)
    return replace(config, train=replace(config.train, epochs=1)) if quick else config


def summarize(benchmark: common.Benchmark, name: str, results: dict[int, dict[str, Any]]) -> None:
    """Add the metrics of the runs of these settings, by seed."""
    for seed, result in results.items():
        benchmark.cells.append(
            {
                "variant": name,
                "seed": seed,
                **{figure: result["test"][figure] for figure in FIGURES},
                "valid_mrr": result["curve"][-1]["valid_mrr"],
                "epochs": result["settings"]["train"]["epochs"],
                "seconds": result["seconds"],
                "source": result["source"],
            }
        )
    for figure in FIGURES:
        found = (result["test"][figure] for result in results.values())
        benchmark.summarize(f"{name}_{figure}", common.Mean.of(found))
    seconds = common.Mean.of(result["seconds"] for result in results.values())
    benchmark.summarize(f"{name}_seconds", seconds)
    benchmark.summary[f"{name}_asked"] = ASKED[name]


def main() -> None:
    parser = parser_of_settings(__doc__, ASKED, "out/kge_quality")
    parser.add_argument(
        "--seeds", type=int, help="number of runs per settings file (default 3, quick 1)"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    seeds: int = arguments.seeds or (1 if arguments.quick else 3)
    # A separate folder, so that a quick run of one epoch does not continue an interrupted full run.
    outcomes = Outcomes(arguments.folder / "quick" if arguments.quick else arguments.folder)
    for name in ASKED:
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: skipped, its graph is missing", file=sys.stderr)
            continue
        configs = {
            seed: config_of(name, graph, seed=seed, quick=arguments.quick)
            for seed in range(arguments.seed, arguments.seed + seeds)
        }
        if name in arguments.settings:
            for seed, config in configs.items():
                outcomes.measure(f"{name}-{seed}", config)
        # The summary includes runs of earlier commands.
        found = {seed: outcomes.result(f"{name}-{seed}", of) for seed, of in configs.items()}
        results = {seed: result for seed, result in found.items() if result is not None}
        if results:
            summarize(benchmark, name, results)
            print(f"{name}: MRR {benchmark.ranges[f'{name}_mrr']}", file=sys.stderr)
            benchmark.keep()
    if arguments.out is None:
        benchmark.write()


if __name__ == "__main__":
    main()
