"""How many pods per second does kube-scheduler place with the plugin RowmillTopology?

Runs the command `scheduler-bench` (scheduler/plugin, written in Go) once per variant and round: kube-scheduler without
the plugin, with it, and with pod affinity in its place, over the fake API of client-go.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common

VARIANTS = ("none", "plugin", "affinity")
CONFIGURATION = common.REPOSITORY / "examples/scheduler/rowmill-scheduler.yaml"
# Nodes, pods bound before the run, pods to place.
SIZE = (5000, 18_000, 2000)
QUICK_SIZE = (1000, 3600, 400)


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that run each variant once")
    arguments = parser.parse_args()
    benchmark = common.Benchmark(common.settings(arguments))
    nodes, bound, pods = QUICK_SIZE if benchmark.settings.quick else SIZE
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory(prefix="rowmill-") as folder:
        program = build(Path(folder))
        size = ["-nodes", str(nodes), "-bound", str(bound), "-pods", str(pods)]
        for number in range(arguments.rounds):
            first = number % len(VARIANTS)
            for variant in VARIANTS[first:] + VARIANTS[:first]:
                command = [program, "-variant", variant, "-config", CONFIGURATION, *size]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                cell: dict[str, Any] = {"round": number, **json.loads(done.stdout)}
                print(f"{variant}, round {number}: {rate(cell):,.0f} pods/s", file=sys.stderr)
                found[variant].append(cell)
                benchmark.cells.append(cell)
                benchmark.keep()
    for variant, cells in found.items():
        benchmark.summarize(f"{variant}_pods_per_s", common.Median.of(map(rate, cells)))
        cpu = [1e6 * cell["cpu_s"] / cell["pods"] for cell in cells]
        benchmark.summarize(f"{variant}_cpu_us_per_pod", common.Median.of(cpu))
        for level in ("leaves", "spines"):
            spread = [cell[f"{level}_per_service"] for cell in cells]
            benchmark.summarize(f"{variant}_{level}_per_service", common.Median.of(spread))
    for other in ("none", "affinity"):
        pairs = list(zip(found["plugin"], found[other], strict=True))
        rates = [rate(ours) / rate(theirs) for ours, theirs in pairs]
        benchmark.summarize(f"plugin_rate_over_{other}", common.Median.of(rates))
        cpu = [theirs["cpu_s"] / ours["cpu_s"] for ours, theirs in pairs]
        benchmark.summarize(f"plugin_pods_per_cpu_s_over_{other}", common.Median.of(cpu))
    benchmark.write()


def rate(cell: dict[str, Any]) -> float:
    """Pods placed per second of wall time."""
    return cell["pods"] / cell["wall_s"]


def build(folder: Path) -> Path:
    """Build the command with the Go compiler in $GO or on the path."""
    found = os.environ.get("GO") or shutil.which("go")
    if found is None:
        sys.exit("found no Go compiler: run `make kube`, which installs it, or set GO to its path")
    go = Path(found).absolute()
    program = folder / "scheduler-bench"
    subprocess.run(
        [go, "build", "-o", program, "./cmd/scheduler-bench"],
        cwd=common.REPOSITORY / "scheduler/plugin",
        check=True,
    )
    return program


if __name__ == "__main__":
    main()
