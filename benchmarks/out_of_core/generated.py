"""A DLRM on the generated log with row memory for a quarter, compared with memory and device limits and other engines."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import common
from benchmarks.out_of_core.peer import load, peer_loop
from benchmarks.peer_loop import PeerLoop, opened_peers
from benchmarks.peer_rows import KINDS, PeerRows
from benchmarks.rounds import Cell, Patience, counted, run_rounds
from benchmarks.training import (
    LoadedTrainer,
    Shape,
    config_of,
    device_reads_per_s,
    loaded,
    wait_for_lookahead,
)
from rowmill.config import ModelConfig, StoreConfig, TrainConfig

LEAD = 8
"""Unmeasured steps at the start of each round."""
LEAD_AHEAD = 160
"""Unmeasured steps with lookahead: they use up prefetched rows from before the other variant ran (at most half of the
memory), and as many steps are announced again as in training."""
SHARE = 0.25
DIM = ModelConfig().dim
LOOKAHEAD = 60
"""Number of batches announced to a peer; the same as to the store."""
_INDEX_BYTES = 24
_FIXED_BYTES = 64 << 20
"""Memory of a peer beyond a quarter of the rows' bytes: per row, and a constant."""


def run(
    benchmark: common.Benchmark,
    *,
    patience: Patience | None = None,
    peers: Sequence[str] = (),
    threads: int | None = None,
) -> None:
    """Add the metrics of 26 tables with a million rows each; the quick form has a tenth of the rows."""
    quick = benchmark.settings.quick
    patience = patience or Patience()
    steps, warm_up = (24, 40) if quick else (40, 80)
    # As many rounds as the time may allow, so that the log does not end before.
    rounds = max(patience.rounds, 5 if quick else int(4 * patience.minutes))
    shape = Shape(
        rows_per_table=100_000 if quick else 1_000_000,
        steps=warm_up + rounds * (LEAD_AHEAD + steps) + 2 * LEAD,
        seed=benchmark.settings.seed,
    )
    program = common.bench_program(peers)

    def probe(store: Path, number: int) -> float:
        return device_reads_per_s(program, store, seconds=1.0, seed=number)

    # In the repository, because /tmp may be in memory.
    with tempfile.TemporaryDirectory(prefix="rowmill-", dir=common.REPOSITORY) as name:
        options = {
            "rows": shape.rows_per_table * shape.tables,
            "row_bytes": 2 * 4 * DIM,
            "memory": int(shape.row_bytes * SHARE)
            + shape.rows_per_table * shape.tables * _INDEX_BYTES
            + _FIXED_BYTES,
            "keys_max": shape.tables * shape.batch,
        }
        with opened_peers(program, list(peers), Path(name), **options) as opened:
            for kind, rows in opened.items():
                print(f"{kind}: filling", file=sys.stderr)
                load(rows, shape, DIM)
            measure(
                benchmark,
                shape,
                probe,
                Path(name),
                patience=patience,
                steps=steps,
                warm_up=warm_up,
                peers=opened,
                threads=threads,
            )


def measure(
    benchmark: common.Benchmark,
    shape: Shape,
    probe: Callable[[Path, int], float],
    folder: Path,
    *,
    patience: Patience,
    steps: int,
    warm_up: int,
    lead: int = LEAD_AHEAD,
    peers: Mapping[str, PeerRows] | None = None,
    threads: int | None = None,
) -> None:
    """Run interleaved rounds of the probe (store, round -> reads per second), of both variants and of peers."""
    train = TrainConfig(threads=threads)
    quarter = config_of(shape, folder, "quarter", share=SHARE, store=StoreConfig(), train=train)
    memory = config_of(
        shape, folder, "memory", share=None, store=StoreConfig(lookahead=0), train=train
    )
    with ExitStack() as stack:
        cold = stack.enter_context(loaded(quarter, shape))
        variants = {"quarter": cold, "in_memory": stack.enter_context(loaded(memory, shape))}
        loops: dict[str, PeerLoop] = {}
        for kind, rows in (peers or {}).items():
            # The store of a peer's task holds no rows.
            store = StoreConfig(lookahead=LOOKAHEAD)
            config = config_of(shape, folder, f"{kind}-model", share=None, store=store, train=train)
            loops[kind] = stack.enter_context(peer_loop(rows, config, threads or 1))
        for trainer in [*variants.values(), *loops.values()]:
            trainer.train(warm_up)
        leads = {"quarter": lead}
        rounds = variant_rounds(variants, loops, probe, steps=steps, leads=leads)
        run_rounds(benchmark, rounds, patience)
    summarize(benchmark, shape.batch)


def variant_rounds(
    variants: Mapping[str, LoadedTrainer],
    loops: Mapping[str, PeerLoop],
    probe: Callable[[Path, int], float],
    *,
    steps: int,
    peer_steps: int | None = None,
    leads: Mapping[str, int],
) -> dict[str, Callable[[int], Cell]]:
    """The functions that run one round: of the probe, of every variant and of every peer. `leads`: unmeasured steps."""
    store = variants["quarter"]

    def probed(number: int) -> Cell:
        reads = probe(store.folder, number)
        return {"variant": "probe", "round": number, "reads_per_s": reads}

    def of_variant(name: str) -> Callable[[int], Cell]:
        def one(number: int) -> Cell:
            variants[name].train(leads.get(name, LEAD))
            cell = variants[name].round(name, number, steps=steps)
            # Its remaining prefetches would slow down the next variant.
            wait_for_lookahead(variants[name].store)
            return cell

        return one

    def of_peer(name: str) -> Callable[[int], Cell]:
        return lambda number: loops[name].round(
            name, number, steps=peer_steps or steps, lead=leads.get(name, LEAD)
        )

    return (
        {"probe": probed}
        | {name: of_variant(name) for name in variants}
        | {name: of_peer(name) for name in loops}
    )


def summarize(benchmark: common.Benchmark, batch: int) -> None:
    """Add rates relative to the lower of the two limits and to peers, per round."""

    def cells(variant: str) -> list[Cell]:
        return counted(benchmark, variant)

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
    for kind in KINDS:
        if peer := cells(kind):
            for figure in ("rows_per_s", "cpu_us_per_row", "blocks_read_per_step"):
                values = common.Median.of(cell[figure] for cell in peer)
                benchmark.summarize(f"{kind}_{figure}", values)
            over = [
                own["rows_per_s"] / other["rows_per_s"]
                for own, other in zip(cells("quarter"), peer, strict=True)
            ]
            benchmark.summarize(f"rate_over_{kind}", common.Median.of(over))
