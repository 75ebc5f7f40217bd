"""How long does training by `examples/quickstart.toml` take, and what does it score?

Each round runs `rowmill train --config examples/quickstart.toml` in a new process and an empty folder: it generates the
click log, trains with row memory for a quarter of the rows, tests and writes its report.
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


def train(config: Path, folder: Path) -> dict[str, Any]:
    """Run the command in an empty folder; returns its report."""
    command = [sys.executable, "-m", "rowmill", "train", "--config", str(config)]
    places = ["--data", str(folder / "log"), "--out", str(folder / "out"), "--plain"]
    subprocess.run([*command, *places], check=True, stdout=sys.stderr)
    return json.loads((folder / "out/report.json").read_text())


def measure(benchmark: common.Benchmark, config: Path, *, rounds: int) -> None:
    """Add the time of the command and the metrics of its reports."""
    reports: list[dict[str, Any]] = []

    def run() -> int:
        # In the repository, because /tmp may be in memory.
        with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as folder:
            reports.append(train(config, Path(folder)))
        return int(reports[-1]["run"]["train_rows"])

    samples = benchmark.compare({"quickstart": run}, rounds=rounds, warm_up=0)["quickstart"]
    for cell, report in zip(benchmark.cells, reports, strict=True):
        cell |= {"test": report["test"], "train": report["train"], "run": report["run"]}
    benchmark.summarize("seconds", common.Median.of(sample.wall_s for sample in samples))
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
        "--rounds", type=int, help="number of runs of the command (default 5, quick 1)"
    )
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    measure(benchmark, CONFIG, rounds=arguments.rounds or (1 if arguments.quick else 5))
    benchmark.write()


if __name__ == "__main__":
    main()
