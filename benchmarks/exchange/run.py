"""What does fusing the exchange of many categories gain, in number of messages and in time?

Ranks are processes on this machine that communicate over gloo. Each cell trains a small dense model on rows that are
sharded over the ranks, with every strategy in turn. Operators are timed separately and compared with torch and NumPy.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import common
from benchmarks.exchange import operators
from benchmarks.exchange.cells import BATCHES, CENTRE, Cell, dims_alone, full, quick
from benchmarks.exchange.launch import ranks_say
from benchmarks.exchange.rank import PARTS
from benchmarks.slow_links.links import missing, network
from rowmill.distributed import STRATEGIES

RANK = Path(__file__).with_name("rank.py")
CORES = len(os.sched_getaffinity(0))
SIZES = [1 << exponent for exponent in range(10, 25, 2)]
"""Bytes per message, 1 KiB to 16 MiB."""
WORDS = {"source-hash": 12}
"""Bytes sent per id by strategy, if not 8: source-hash also sends the category of each id."""


PARTS_ALL = "operators,2,4,dims,chunks,cache"
BY_STRATEGY: dict[str, dict[str, Any]] = {name: {"strategy": name} for name in STRATEGIES}
CHUNKS = ("1GiB", "64MiB", "16MiB", "4MiB", "1MiB")
"""Largest bytes of a chunk; the first value exceeds every message of the cells."""
AHEAD = (0, 1, 2, 4, 8)
"""Largest number of batches for which a row is cached."""


def figures(cell: Cell, strategy: str, seen: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Metrics of a step, from the measurements of all ranks in a round."""
    wall = max(of["wall_s"] for of in seen)
    ask, rows, gradients = (
        max(of["seconds"][part] for of in seen) * 1e3 / cell.steps for part in PARTS
    )
    sent = {leg: [of["bytes_sent"][leg] / cell.steps for of in seen] for leg in seen[0]["rounds"]}
    rounds = {leg: count / cell.steps for leg, count in seen[0]["rounds"].items()}
    others = cell.ranks - 1
    of_ids = rounds["keys"] / (2 if strategy == "source-hash" else 1)
    asked = sum(sent["keys"]) / WORDS.get(strategy, 8)
    return {
        "rounds": sum(rounds.values()),
        "rounds_of_rows": rounds["rows"],
        "bytes_per_rank": sum(map(sum, sent.values())) / cell.ranks,
        "count_bytes_per_rank": sum(sent["counts"]) / cell.ranks,
        "entries_per_message": asked / (of_ids * others * cell.ranks),
        "bytes_per_message_of_rows": sum(sent["rows"]) / (rounds["rows"] * others * cell.ranks),
        "forward_ms": ask + rows,
        "backward_ms": gradients,
        "exchange_ms": ask + rows + gradients,
        "step_ms": wall * 1e3 / cell.steps,
        "rows_per_s": cell.ranks * cell.batch * cell.categories * cell.steps / wall,
        "rows_mb_per_s": sum(sent["rows"]) / cell.ranks / rows / 1e3,
        "balance": max(sent["rows"]) * cell.ranks / max(1.0, sum(sent["rows"])),
        "busy": sum(of["cpu_s"] for of in seen) / wall / CORES,
        "held_mb": max(of["bytes_held"] for of in seen) / 1e6,
    }


class Collected:
    """Metrics by cell, strategy and round."""

    def __init__(self, benchmark: common.Benchmark) -> None:
        self.benchmark = benchmark
        self.rounds: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)

    def take(self, said: dict[str, Any]) -> None:
        """Store one JSON object of rank 0."""
        if said["kind"] == "message":
            per_s = (said["bytes"] * (said["ranks"] - 1) / s / 1e6 for s in said["seconds"])
            name = f"r{said['ranks']}_message_{said['bytes']}_mb_per_s"
            self.benchmark.summarize(name, common.Median.of(per_s))
            return
        cell, strategy = Cell.from_json(said["cell"]), said["variant"]
        found = figures(cell, strategy, said["seen"])
        self.rounds[cell.name, strategy].append(found)
        variant = {"variant": f"{cell.name} {strategy}", "round": said["round"]}
        self.benchmark.cells.append({**variant, **found})
        print(
            f"{cell.name}, {strategy}: exchange {found['exchange_ms']:.1f} ms, "
            f"step {found['step_ms']:.1f} ms",
            file=sys.stderr,
        )

    def summarize(self, cell: str) -> None:
        """Add medians, and the speed of `packed` relative to every other strategy per round; above 1 packed is faster."""
        of = {strategy: self.rounds[cell, strategy] for strategy in STRATEGIES}
        for strategy, rounds in of.items():
            for figure in rounds[0]:
                median = common.Median.of(each[figure] for each in rounds)
                self.benchmark.summarize(f"{cell}_{strategy}_{figure}", median)
        for figure in ("exchange_ms", "step_ms"):
            for strategy in STRATEGIES[1:]:
                gain = _gain(of[strategy], of["packed"], figure)
                name = f"{cell}_packed_over_{strategy}_{figure.removesuffix('_ms')}"
                self.benchmark.summarize(name, gain)
            best = min(
                self.benchmark.summary[f"{cell}_{strategy}_{figure}"] for strategy in STRATEGIES
            )
            own = self.benchmark.summary[f"{cell}_packed_{figure}"]
            self.benchmark.summary[f"{cell}_packed_behind_best_{figure}"] = own / best - 1


def _gain(
    theirs: Iterable[dict[str, float]], ours: Iterable[dict[str, float]], figure: str
) -> common.Median:
    return common.Median.of(
        other[figure] / own[figure] for other, own in zip(theirs, ours, strict=True)
    )


def _job(
    benchmark: common.Benchmark,
    cells: Sequence[Cell],
    rounds: int,
    variants: dict[str, dict[str, Any]],
    *,
    sizes: Sequence[int] = (),
    depth: int = 0,
    ahead: Sequence[int] = (),
    precision: str = "fp32",
) -> dict[str, Any]:
    """The job that is sent to ranks."""
    return {
        "cells": [cell.as_json() for cell in cells],
        "sizes": sizes,
        "seed": benchmark.settings.seed,
        "rounds": rounds,
        "variants": variants,
        "depth": depth,
        "ahead": ahead,
        "precision": precision,
    }


def measure(
    benchmark: common.Benchmark,
    cells: Sequence[Cell],
    sizes: Sequence[int],
    rounds: int,
    depth: int = 0,
    precision: str = "fp32",
    link: str | None = None,
) -> None:
    """Measure cells with the same number of ranks, with `depth` batches prepared ahead, over loopback or links of a rate.

    Each cell runs in new processes, so the allocator's memory is not reused, and a failing cell does not affect those before.
    """
    collected = Collected(benchmark)
    ranks = cells[0].ranks
    for cell in cells:
        job = _job(benchmark, [cell], rounds, BY_STRATEGY, depth=depth, precision=precision)
        for said in _said(job, ranks, link):
            collected.take(said)
        collected.summarize(cell.name)
        benchmark.keep()
    for said in _said(_job(benchmark, [], rounds, {}, sizes=sizes), ranks, link):
        collected.take(said)


def _said(job: dict[str, Any], ranks: int, link: str | None) -> Iterator[dict[str, Any]]:
    with nullcontext() if link is None else network(ranks, link) as made:
        yield from ranks_say(RANK, job, ranks, made)


def measure_chunks(benchmark: common.Benchmark, rounds: int) -> None:
    """Compare large messages sent whole and in chunks: step time and memory of messages."""
    cells = [replace(CENTRE, batch=4096), replace(CENTRE, batch=8192)]
    variants = {size: {"chunk_bytes_max": size} for size in CHUNKS}
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    job = _job(benchmark, cells, rounds, variants)
    for said in ranks_say(RANK, job, cells[0].ranks):
        cell, size = Cell.from_json(said["cell"]), said["variant"]
        seen = figures(cell, "packed", said["seen"])
        found[cell.name, size].append(seen)
        benchmark.cells.append({"variant": f"{cell.name} {size}", "round": said["round"], **seen})
    for (cell, size), of in found.items():
        for figure in ("step_ms", "rounds_of_rows", "held_mb"):
            median = common.Median.of(each[figure] for each in of)
            benchmark.summarize(f"{cell}_chunk_{size}_{figure}", median)
        gain = _gain(found[cell, CHUNKS[0]], of, "step_ms")
        benchmark.summarize(f"{cell}_whole_over_chunk_{size}_step", gain)


def measure_cache(benchmark: common.Benchmark) -> None:
    """Measure how many rows an evaluation does not fetch, by the number of batches for which rows are cached."""
    variants = {"packed": BY_STRATEGY["packed"]}
    cells = [CENTRE, replace(CENTRE, batch=4096)]
    job = _job(benchmark, cells, 0, variants, ahead=AHEAD)
    sent: dict[str, float] = {}
    for said in ranks_say(RANK, job, cells[0].ranks):
        cell, ahead, seen = Cell.from_json(said["cell"]), said["ahead"], said["seen"]
        rows, hits, saved = (
            sum(of["use"][what] for of in seen) / said["batches"] / cell.ranks
            for what in ("rows", "hits", "bytes_saved")
        )
        by_leg = {leg: sum(of["bytes_sent"][leg] for of in seen) for leg in ("keys", "rows")}
        wire = sum(by_leg.values()) / said["batches"] / cell.ranks
        of_step = {
            "wire_kb": wire / 1e3,
            "hit_rate": hits / rows if rows else 0.0,
            "hits": hits,
            "saved_kb": saved / 1e3,
            "wire_saved": 1 - wire / sent.setdefault(cell.name, wire),
            "held_rows_max": max(of["use"]["held_max"] for of in seen),
            "batch_ms": max(of["wall_s"] for of in seen) * 1e3 / said["batches"],
        }
        benchmark.cells.append({"variant": f"{cell.name} ahead {ahead}", **of_step})
        for figure, value in of_step.items():
            benchmark.summary[f"{cell.name}_ahead_{ahead}_{figure}"] = value


def main() -> None:
    parser = common.argument_parser(__doc__)
    parser.add_argument(
        "--parts",
        help=f"parts, separated by commas: operators, a number of ranks, dims, chunks, cache (default: {PARTS_ALL})",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="cuda: measure only operators, on a GPU (default: cpu)",
    )
    parser.add_argument(
        "--rounds", type=int, help="number of rounds per cell (default: 9, quick: 5)"
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=0,
        help="batches prepared ahead in parts that compare strategies (default: 0)",
    )
    parser.add_argument(
        "--precision",
        choices=["fp32", "split-bf16"],
        default="fp32",
        help="precision of rows, messages and products in parts that compare strategies (default: fp32)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        choices=BATCHES,
        action="append",
        help="measure only cells of the full grid with this batch size (default: both)",
    )
    parser.add_argument(
        "--link",
        help="rate of the link of each rank in parts that compare strategies, as `tc` takes it, such as 1gbit; needs root "
        "(default: loopback)",
    )
    arguments = parser.parse_args()
    if arguments.link is not None and (why := missing()):
        sys.exit(f"--link {arguments.link}: {why}")
    benchmark = common.Benchmark(common.settings(arguments))
    short = benchmark.settings.quick
    rounds: int = arguments.rounds or (5 if short else 9)
    if short and arguments.batch:
        parser.error(
            "--batch selects from the full grid and does not work with --quick: leave one out"
        )
    if arguments.device == "cuda":
        if arguments.parts not in (None, "operators"):
            parser.error(
                f"--device cuda measures only operators, got --parts {arguments.parts}: use --parts operators"
            )
        if not torch.cuda.is_available():
            sys.exit("--device cuda: torch finds no GPU on this machine")
        from benchmarks.exchange import (
            operators_gpu,
        )  # Imported here, because Triton may be missing.

        operators_gpu.measure(benchmark, torch.device("cuda"), rounds=rounds)
        return benchmark.write()
    apart = arguments.depth, arguments.precision, arguments.link
    for part in (arguments.parts or PARTS_ALL).split(","):
        if part == "operators":
            operators.measure(benchmark, batch=2048, rounds=rounds, repeats=4)
        elif part == "chunks":
            measure_chunks(benchmark, rounds)
        elif part == "cache":
            measure_cache(benchmark)
        elif part == "dims":
            measure(benchmark, dims_alone(), SIZES, rounds, *apart)
        elif part.isdecimal() and int(part) > 1:
            cells = quick(int(part)) if short else list(full(int(part), arguments.batch or BATCHES))
            measure(benchmark, cells, SIZES, rounds, *apart)
        else:
            parser.error(
                f"--parts must be operators, dims, chunks, cache, or a number of ranks from 2, got {part!r}"
            )
    benchmark.write()


if __name__ == "__main__":
    main()
