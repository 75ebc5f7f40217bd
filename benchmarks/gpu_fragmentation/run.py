"""How many GPUs and cores does splitting recommendation models free?

Runs the command `rowmill-placement study` (scheduler/placement, written in Go) and records its results: the published
benchmark of FGD as a reference, fragmentation of the paper's cluster H before and after the split, the published trace
replayed with seven policies, what bounds the pairs that cross leaves, and the nodes that three services need on the day
of a promotion.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common

PARTS = ("facts", "yardstick", "cluster-h", "trace", "limits", "promotion", "speed")


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "parts", nargs="*", help=f"parts to run, of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="number of seeds per part; 0: 10 or 20, depending on the part",
    )
    parser.add_argument("--pictures", type=Path, help="folder for SVG charts")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown parts {sorted(unknown)}; use {', '.join(PARTS)}")
    benchmark = common.Benchmark(common.settings(arguments))
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        program = build(Path(folder))
        data = common.data_file("cluster") or generated(program, Path(folder) / "data")
        command = [program, "study", "-data", data, "-seeds", str(arguments.seeds)]
        command += ["-quick"] if benchmark.settings.quick else []
        command += ["-pictures", arguments.pictures] if arguments.pictures else []
        for part in arguments.parts or PARTS:
            done = subprocess.run([*command, part], check=True, stdout=subprocess.PIPE, text=True)
            keep(benchmark, json.loads(done.stdout))
            benchmark.keep()
    benchmark.write()


def build(folder: Path) -> Path:
    """Build the command with the Go compiler in $GO or on the path."""
    go = os.environ.get("GO") or shutil.which("go")
    if go is None:
        sys.exit(
            "found no Go compiler: run `make placement-study`, which installs it, or set GO to its path"
        )
    program = folder / "rowmill-placement"
    subprocess.run(
        [go, "build", "-o", program, "./cmd/rowmill-placement"],
        cwd=common.REPOSITORY / "scheduler/placement",
        check=True,
    )
    return program


def generated(program: Path, folder: Path) -> Path:
    """Generate data sets of the public shape, and warn that results differ from those of the public ones."""
    print(
        "public traces not found: put openb_* and disaggregated_DLRM_trace.csv of alibaba/clusterdata "
        "into $ROWMILL_DATA/cluster; running with generated traces",
        file=sys.stderr,
    )
    subprocess.run([program, "generate", "-out", folder], check=True)
    return folder


def keep(benchmark: common.Benchmark, study: dict[str, Any]) -> None:
    """Add the metrics of one part, and its runs as cells."""
    study.pop("data")
    for part, result in study.items():
        for name, value in flattened(part, result):
            if isinstance(value, dict):
                of = cast("dict[str, float]", value)
                figure = common.Figure(of["mean"], of["min"], of["max"], int(of["seeds"]))
                benchmark.summarize(name, figure)
                benchmark.summary[f"{name}_ci95"] = of["half"]
            else:
                benchmark.summary[name] = value
        for run in result.get("runs", []):
            run.pop("curve", None)
            benchmark.cells.append({"part": part, **run})


def flattened(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """Flatten nested results into pairs of a name, joined with underscores, and a number; skips runs and points."""
    if isinstance(value, list):
        for level in cast("list[dict[str, Any]]", value):
            yield from flattened(f"{name}_{label(level)}", level["figures"])
    elif isinstance(value, dict) and "mean" not in value:
        for key, inner in cast("dict[str, object]", value).items():
            if key not in ("runs", "free_cores_and_gpus"):
                part = "" if key in ("summary", "figures") else f"_{key.replace(' ', '_')}"
                yield from flattened(name + part, inner)
    elif isinstance(value, dict | int | float):
        yield name, value


def label(level: dict[str, Any]) -> str:
    """The name of one level of cluster H: `90_best-fit`, plus the rules for monoliths and pods that are not the default."""
    words = [f"{100 * level['level']:.0f}", level["policy"]]
    if level["monoliths"] != "larger half":
        words.append(level["monoliths"].replace(" ", "_"))
    if level["pods"] != "as published":
        words.append(level["pods"].replace(" ", "_"))
    return "_".join(words)


if __name__ == "__main__":
    main()
