"""How long do the two first runs of a user take: the demo of `make`, and training by `examples/quickstart.toml`?

Each round runs both, each in a new process and an empty folder. `rowmill train --config examples/quickstart.toml`
generates the click log, trains with row memory for a quarter of the rows, tests and writes its report. The demo trains two
runs over two days, kills one of them, and compares their scores. The time of `make` without its set-up is that of the demo.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common

CONFIG = common.REPOSITORY / "examples/quickstart.toml"
DEMO = common.REPOSITORY / "examples/day_by_day.py"


def train(config: Path, folder: Path) -> dict[str, Any]:
    """Run the command in an empty folder; returns its report."""
    command = [sys.executable, "-m", "rowmill", "train", "--config", str(config)]
    places = ["--data", str(folder / "log"), "--out", str(folder / "out"), "--plain"]
    subprocess.run([*command, *places], check=True, stdout=sys.stderr)
    return json.loads((folder / "out/report.json").read_text())


def measure(benchmark: common.Benchmark, config: Path, demo: Path, *, rounds: int) -> None:
    """Add the time of the command, the metrics of its reports, and the time of the demo."""
    reports: list[dict[str, Any]] = []

    def empty_folder() -> tempfile.TemporaryDirectory[str]:
        # In the repository, because /tmp may be in memory.
        return tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY)

    def quickstart() -> int:
        with empty_folder() as folder:
            reports.append(train(config, Path(folder)))
        return int(reports[-1]["run"]["train_rows"])

    def make() -> int:
        with empty_folder() as folder:
            subprocess.run([sys.executable, str(demo)], cwd=folder, check=True, stdout=sys.stderr)
        return 1

    variants = {"quickstart": quickstart, "make": make}
    samples = benchmark.compare(variants, rounds=rounds, warm_up=0)
    trained = [cell for cell in benchmark.cells if cell["variant"] == "quickstart"]
    for cell, report in zip(trained, reports, strict=True):
        cell |= {"test": report["test"], "train": report["train"], "run": report["run"]}
    for name, variant in (("seconds", "quickstart"), ("make_seconds", "make")):
        benchmark.summarize(name, common.Median.of(sample.wall_s for sample in samples[variant]))
    for part, name in (
        ("train", "rows_per_s"),
        ("train", "hit_rate"),
        ("test", "auc"),
        ("test", "logloss"),
        ("run", "live_rows"),
    ):
        benchmark.summarize(name, common.Median.of(float(r[part][name]) for r in reports))


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--rounds", type=int, help="number of runs of each of the two (default 5, quick 1)"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    measure(benchmark, CONFIG, DEMO, rounds=arguments.rounds or (1 if arguments.quick else 5))
    benchmark.write()


if __name__ == "__main__":
    main()
