"""How well do knowledge-graph models over stored rows rank the missing links of known graphs?

Each file of settings in `examples/kge` is trained with several seeds; the summary has the mean of the test part over seeds. The
graphs are in the folder that `$ROWMILL_DATA` names, else in `../shared/data`; those that are not there are left out. The outcome of each
run is a file below `--folder`, from which the same command makes the summary. A run that was interrupted continues from its last
checkpoint.
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


def config_of(name: str, graph: Path, *, seed: int, quick: bool) -> Config:
    """The settings of this name; in the quick form of one epoch."""
    flags = {("data", "path"): graph, ("train", "seed"): seed}
    config = load_config(EXAMPLES / f"{name}.toml", flags)
    return replace(config, train=replace(config.train, epochs=1)) if quick else config


def summarize(benchmark: common.Benchmark, name: str, results: dict[int, dict[str, Any]]) -> None:
    """Figures of the runs of these settings, by seed."""
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
    parser.add_argument("--seeds", type=int, help="runs of each settings (default 3, quick 1)")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    seeds: int = arguments.seeds or (1 if arguments.quick else 3)
    # Apart: one epoch must not go on with, or end, a whole run that was interrupted.
    outcomes = Outcomes(arguments.folder / "quick" if arguments.quick else arguments.folder)
    for name in ASKED:
        graph = graph_of(name)
        if graph is None:
            print(f"{name}: its graph is not there, left out", file=sys.stderr)
            continue
        configs = {
            seed: config_of(name, graph, seed=seed, quick=arguments.quick)
            for seed in range(arguments.seed, arguments.seed + seeds)
        }
        if name in arguments.settings:
            for seed, config in configs.items():
                outcomes.measure(f"{name}-{seed}", config)
        # Runs that an earlier command made belong to the summary too.
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
