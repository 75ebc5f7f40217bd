"""AUC on held-out rows by staleness bound, from runs of `rowmill train` with many steps in flight."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import common
from rowmill.config import Config, DataConfig, StoreConfig, TrainConfig
from rowmill.ctr.settings import GenerateConfig
from rowmill.train import train

BOUNDS: tuple[int | None, ...] = (0, 1, 4, 10, 20, 40, 80, None)
"""None means no bound: rows are stale by up to the number of steps in flight."""
IN_FLIGHT = 256
"""Larger than any bound, so that the bound limits staleness."""
MEMORY = "2GiB"


def name_of(bound: int | None) -> str:
    """The bound's part of the names of metrics."""
    return "infinite" if bound is None else str(bound)


@dataclass(frozen=True)
class Log:
    """A click log for training and testing, and a batch size that gives enough steps."""

    name: str
    data: DataConfig
    generate: GenerateConfig | None
    batch: int


def logs(folder: Path, *, rows: int) -> list[Log]:
    """The generated log, and the Criteo sample if `$ROWMILL_DATA` or `../shared/data` has it."""
    generated = GenerateConfig(rows=rows, rows_per_table=rows // 4, zipf=1.05)
    found = [Log("generated", DataConfig(path=folder / "log"), generated, 128)]
    sample = common.data_file("criteo/criteo80k.parquet")
    if sample is not None:
        return [*found, Log("criteo", DataConfig(path=sample), None, 128)]
    print("no Criteo sample in $ROWMILL_DATA or ../shared/data: skipped", file=sys.stderr)
    return found


def run(
    log: Log, folder: Path, *, bound: int | None, seed: int, row_memory: int | None
) -> dict[str, Any]:
    """Train once; returns the test metrics and the largest possible staleness of rows."""
    report = train(
        Config(
            data=log.data,
            generate=log.generate,
            store=StoreConfig(
                memory=MEMORY,
                row_memory=None if row_memory is None else str(row_memory),
                staleness_bound=bound,
            ),
            train=TrainConfig(
                batch=log.batch,
                seed=seed,
                in_flight=IN_FLIGHT,
                checkpoint_every=0,
                out=folder / f"{log.name}-{name_of(bound)}-{seed}",
            ),
        ),
        Console(quiet=True),
    )
    cell = {
        "variant": f"quality_{log.name}",
        "bound": name_of(bound),
        "seed": seed,
        "steps": report["run"]["steps"],
        **{figure: report["test"][figure] for figure in ("auc", "logloss")},
        **{figure: report["train"][figure] for figure in ("rows_per_s", "hit_rate", "stall_share")},
        "cold_reads": report["run"]["cold_reads"] + report["run"]["lookahead_loaded"],
        "live_row_bytes": report["run"]["live_row_bytes"],
    }
    print(f"{log.name}, bound {cell['bound']}, seed {seed}: AUC {cell['auc']:.4f}", file=sys.stderr)
    return cell


def runs(
    log: Log, folder: Path, *, bounds: Iterable[int | None], seeds: Iterable[int]
) -> list[dict[str, Any]]:
    """Run every bound with every seed, with row memory for a quarter of the final rows."""
    quarter = live_row_bytes(log, folder) // 4
    return [
        run(log, folder, bound=bound, seed=seed, row_memory=quarter)
        for bound in bounds
        for seed in seeds
    ]


def live_row_bytes(log: Log, folder: Path) -> int:
    """Bytes of the final rows of a run; they are the same for every seed and bound."""
    # Separate from the measured run with the same bound and seed.
    sizing = folder / "sizing"
    return run(log, sizing, bound=None, seed=0, row_memory=None)["live_row_bytes"]


def summarize(benchmark: common.Benchmark, cells: list[dict[str, Any]]) -> None:
    """Add the mean AUC of each bound, and its loss relative to bound 0 per seed, in percent."""
    for variant in dict.fromkeys(cell["variant"] for cell in cells):
        mine = [cell for cell in cells if cell["variant"] == variant]
        of_bound = {
            bound: {cell["seed"]: cell["auc"] for cell in mine if cell["bound"] == bound}
            for bound in dict.fromkeys(cell["bound"] for cell in mine)
        }
        synchronous = of_bound["0"]
        for bound, scores in of_bound.items():
            name = f"{variant}_bound_{bound}"
            benchmark.summarize(f"{name}_auc", common.Mean.of(scores.values()))
            losses = [100 * (1 - auc / synchronous[seed]) for seed, auc in scores.items()]
            benchmark.summarize(f"{name}_auc_loss_percent", common.Mean.of(losses))
    benchmark.cells.extend(cells)
