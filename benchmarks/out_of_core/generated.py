"""A quarter of the memory: a DLRM on the generated log, beside the limits that memory and device set."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import common
from benchmarks.training import (
    LoadedTrainer,
    Shape,
    config_of,
    device_reads_per_s,
    loaded,
    wait_for_lookahead,
)
from rowmill.config import StoreConfig, TrainConfig

LEAD = 8
"""Steps of each round before the measured ones."""
LEAD_AHEAD = 160
"""The same with lookahead: what it read while the other variant ran, half of the memory at most, is used up, and as many steps
are announced as before."""
SHARE = 0.25


def run(benchmark: common.Benchmark, *, threads: int | None = None) -> None:
    """Adds the figures of 26 tables of a million rows each; the quick form has a tenth of them."""
    quick = benchmark.settings.quick
    rounds, steps, warm_up = (5, 24, 40) if quick else (7, 40, 80)
    shape = Shape(
        rows_per_table=100_000 if quick else 1_000_000,
        steps=warm_up + rounds * (LEAD_AHEAD + steps) + 2 * LEAD,
        seed=benchmark.settings.seed,
    )
    program = common.bench_program()

    def probe(store: Path, number: int) -> float:
        return device_reads_per_s(program, store, seconds=1.0, seed=number)

    measure(benchmark, shape, probe, rounds=rounds, steps=steps, warm_up=warm_up, threads=threads)


def measure(
    benchmark: common.Benchmark,
    shape: Shape,
    probe: Callable[[Path, int], float],
    *,
    rounds: int,
    steps: int,
    warm_up: int,
    lead: int = LEAD_AHEAD,
    threads: int | None = None,
) -> None:
    """Rounds of the probe (store, round -> reads per second) and both variants, interleaved."""
    train = TrainConfig(threads=threads)
    # Beside the repository, not in /tmp: that may be memory.
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as name:
        folder = Path(name)
        quarter = config_of(shape, folder, "quarter", share=SHARE, store=StoreConfig(), train=train)
        memory = config_of(
            shape, folder, "memory", share=None, store=StoreConfig(lookahead=0), train=train
        )
        with loaded(quarter, shape) as cold, loaded(memory, shape) as warm:
            variants = {"quarter": cold, "in_memory": warm}
            for trainer in variants.values():
                trainer.train(warm_up)
            for number in range(rounds):
                wait_for_lookahead(cold.store)
                reads = probe(cold.folder, number)
                leads = {"quarter": lead}
                one_round(benchmark, variants, number, steps=steps, device=reads, leads=leads)
    summarize(benchmark, shape.batch)


def one_round(
    benchmark: common.Benchmark,
    variants: dict[str, LoadedTrainer],
    number: int,
    *,
    steps: int,
    device: float,
    leads: Mapping[str, int] | None = None,
) -> None:
    """Each variant once, the starting one rotating; `leads`: steps before it is measured, if not `LEAD`."""
    benchmark.cells.append({"variant": "probe", "round": number, "reads_per_s": device})
    names = list(variants)
    for name in names[number % len(names) :] + names[: number % len(names)]:
        variants[name].train((leads or {}).get(name, LEAD))
        cell = variants[name].round(name, number, steps=steps)
        print(f"{name}, round {number}: {cell['rows_per_s']:,.0f}/s", file=sys.stderr)
        benchmark.cells.append(cell)


def summarize(benchmark: common.Benchmark, batch: int) -> None:
    """The rate over the lower of the two limits, round by round; a step has a batch of rows."""

    def cells(variant: str) -> list[dict[str, float]]:
        found = [cell for cell in benchmark.cells if cell["variant"] == variant]
        return found  # pyright: ignore[reportReturnType]

    for variant in ("quarter", "in_memory"):
        for figure in ("rows_per_s", "cpu_us_per_row"):
            values = common.Median.of(cell[figure] for cell in cells(variant))
            benchmark.summarize(f"{variant}_{figure}", values)
    for figure in ("hit_rate", "stall_share", "cold_rows_per_step", "distinct_rows_per_step"):
        values = common.Median.of(cell[figure] for cell in cells("quarter"))
        benchmark.summarize(f"quarter_{figure}", values)
    over_limit: list[float] = []
    over_memory: list[float] = []
    device_limits: list[float] = []
    rounds = zip(cells("probe"), cells("quarter"), cells("in_memory"), strict=True)
    for probe, own, memory in rounds:
        device = probe["reads_per_s"] / max(own["cold_rows_per_step"], 1e-9) * batch
        device_limits.append(device)
        over_limit.append(own["rows_per_s"] / min(device, memory["rows_per_s"]))
        over_memory.append(own["rows_per_s"] / memory["rows_per_s"])
    benchmark.summarize("device_limit_rows_per_s", common.Median.of(device_limits))
    benchmark.summarize("rate_with_a_quarter_over_in_memory", common.Median.of(over_memory))
    benchmark.summarize("rate_with_a_quarter_over_limit", common.Median.of(over_limit))
